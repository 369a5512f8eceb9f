"""Tensor names: what Hugging Face calls them → what GGUF calls them, which are our own names.

In:  an architecture and the names in a checkpoint.
Out: for each name its canonical one. The tables are the gguf library's; none is kept here.
Knows nothing of files or of what the tensors hold.
"""

import re
from collections.abc import Iterable

from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

from headlong.errors import TensorError
from headlong.weights.mapped_file import shown

MAX_BLOCKS = 256
"""Blocks beyond this keep their own names; the deepest known model has about half as many."""

_BLOCK = re.compile(r"(?:^|\.)layers\.(\d{1,3})\.")
_ARCHITECTURES = {"gemma3_text": "gemma3", "qwen3_5_text": "qwen35", "qwen3_5": "qwen35"}
_NAMED_LIKE = {"mimo": "qwen2"}
"""Architectures the gguf library does not know → one it knows with the same tensor names."""


def canonical_architecture(model_type: str) -> str:
    """Return GGUF's name for a Hugging Face `model_type`; unknown ones pass through."""
    return _ARCHITECTURES.get(model_type, model_type)


def canonical_names(architecture: str, names: Iterable[str]) -> dict[str, str]:
    """Return the canonical name of every name; one the tables do not know stays as it is."""
    names = list(names)
    known = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    arch: MODEL_ARCH | None = known.get(_NAMED_LIKE.get(architecture, architecture))
    if arch is None:
        return {name: name for name in names}
    table = get_tensor_name_map(arch, _num_blocks(names))
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name in names:
        # Multimodal checkpoints put the text model's names behind a prefix.
        text_name = name.replace("language_model.", "", 1)
        text_name = text_name.replace(".dt_bias", ".dt_proj.bias")  # as the tables have it
        canonical = table.get_name(text_name, try_suffixes=(".weight", ".bias")) or name
        if canonical in owners:
            raise TensorError(
                f"The tensors {shown(owners[canonical])} and {shown(name)} both mean {canonical}.",
                "The checkpoint was put together wrongly; download it again.",
            )
        owners[canonical] = name
        found[name] = canonical
    return found


def _num_blocks(names: list[str]) -> int:
    # From the names, not from the config: blocks after the last one hold MTP heads.
    blocks = [int(match[1]) for match in map(_BLOCK.search, names) if match]
    return min(max(blocks, default=-1) + 1, MAX_BLOCKS)
