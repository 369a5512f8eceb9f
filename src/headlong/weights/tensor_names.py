"""Tensor names: what Hugging Face and MLX call them → what GGUF calls them, our own names.

In:  an architecture and the names in a checkpoint.
Out: for each name its canonical one. The tables are the gguf library's; none is kept here.
Knows nothing of files or of what the tensors hold.
"""

import re
from collections.abc import Iterable

from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

from headlong.errors import TensorError
from headlong.weights.mapped_file import shown
from headlong.weights.mtp_names import canonical_mtp_name, joined_mtp_name

MAX_BLOCKS = 256
"""Blocks beyond this keep their own names; the deepest known model has about half as many."""

_BLOCK = re.compile(r"(?:^|\.)layers\.(\d{1,3})\.")
_ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gemma4_text": "gemma4",
    "gemma4_assistant": "gemma4-assistant",
    "gemma4_unified_assistant": "gemma4-assistant",
    "glm4_moe_lite": "deepseek2",
    "mimo_v2": "mimo2",
    "mimo_v2_flash": "mimo2",
    "glm4_moe": "glm4moe",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35",
    "qwen3_next": "qwen3next",
}
_WITH_EXPERTS = {"nemotron_h": "nemotron_h_moe"}
"""Architectures that GGUF calls otherwise where they have experts."""
_NAMED_LIKE = {"mimo": "qwen2", "gemma4-assistant": "gemma4"}
"""Architectures the gguf library does not know → one it knows with the same tensor names."""


_EXPERTS = re.compile(
    r"(?:model|backbone)\.layers\.(\d{1,3})\.(?:\w+\.)?experts\."
    r"(?:(\d{1,4})\.)?(gate_up|gate|up|down)_proj(?:\.weight)?"
)

# mlx-lm stacks experts under names of its own and splits latent attention as GGUF files do.
_MLX_PARTS = (
    (re.compile(r"\.(?:switch_mlp|experts\.switch_glu)\."), ".experts."),
    (re.compile(r"\.experts\.fc1\."), ".experts.up_proj."),
    (re.compile(r"\.experts\.fc2\."), ".experts.down_proj."),
    (re.compile(r"\.embed_q\."), ".k_b_proj."),
    (re.compile(r"\.unembed_out\."), ".v_b_proj."),
)

_ROUTER_SCALE = re.compile(r"model\.layers\.(\d{1,3})\.router\.(per_expert_)?scale")
"""Gemma 4 has names for these that no table knows."""


def expert_name(stack: str, number: int) -> str:
    """Return the name of one expert's matrix that the file holds apart from the others."""
    return stack.replace("_exps.", f"_exps.{number}.")


def fused_name(stack: str) -> str | None:
    """Return the name under which matrices of gate and up lie in one stack, for one of the two."""
    fused = re.sub("_(gate|up)_exps", "_gate_up_exps", stack)
    return None if fused == stack else fused


def canonical_architecture(model_type: str, *, has_experts: bool = False) -> str:
    """Return GGUF's name for a Hugging Face `model_type`; unknown ones pass through."""
    name = _ARCHITECTURES.get(model_type, model_type)
    return _WITH_EXPERTS.get(name, name) if has_experts else name


def canonical_names(
    architecture: str, names: Iterable[str], num_layers: int | None = None
) -> dict[str, str]:
    """Return the canonical name of every name; one the tables do not know stays as it is.

    Without the number of the backbone's layers, MTP tensors keep their own names.
    """
    read_as = {name: _read_as(architecture, name, num_layers) for name in names}
    known = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    arch: MODEL_ARCH | None = known.get(_NAMED_LIKE.get(architecture, architecture))
    if arch is None:
        return {name: name for name in read_as}
    table = get_tensor_name_map(arch, _num_blocks(read_as.values()))
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name, text_name in read_as.items():
        is_canonical = text_name.startswith(("blk.", "nextn."))
        in_table = table.get_name(text_name, try_suffixes=(".weight", ".bias"))
        looked_up = _experts_name(text_name) or in_table
        canonical = text_name if is_canonical else looked_up or name
        if looked_up is None and _is_behind(text_name, num_layers):
            # seen as a part of an MTP layer
            canonical = text_name.replace("model.layers.", "blk.", 1)
        if canonical in owners:
            raise TensorError(
                f"The tensors {shown(owners[canonical])} and {shown(name)} both mean {canonical}.",
                "The checkpoint was put together wrongly; download it again.",
            )
        owners[canonical] = name
        found[name] = canonical
    return found


def _is_behind(text_name: str, num_layers: int | None) -> bool:
    """Tell whether a tensor belongs to a block behind the backbone's last layer."""
    match = _BLOCK.search(text_name)
    return match is not None and num_layers is not None and int(match[1]) >= num_layers


def _read_as(architecture: str, name: str, num_layers: int | None) -> str:
    """Return the spelling of a name that is looked up in the tables."""
    # Multimodal checkpoints put the text model's names behind a prefix.
    text_name = name.replace("language_model.", "", 1)
    for part, ours in _MLX_PARTS:
        text_name = part.sub(ours, text_name)
    if num_layers is not None:
        is_pattern = architecture.startswith("nemotron_h")
        text_name = joined_mtp_name(text_name) if is_pattern else text_name
        text_name = canonical_mtp_name(text_name, num_layers)
    # As the tables have it.
    if ".mixer." in text_name:
        text_name = text_name.replace("model.layers.", "backbone.layers.", 1)
    text_name = re.sub(
        r"\.(?:sinks|attention_sink_bias)$", ".attention_sink_bias.weight", text_name
    )
    text_name = text_name.replace(".dt_bias", ".dt_proj.bias")
    text_name = re.sub(r"\.layer_scalar$", ".layer_scalar.weight", text_name)
    text_name = re.sub(r"^(pre|post)_projection\.weight$", r"nextn.\1_projection.weight", text_name)
    scale = _ROUTER_SCALE.fullmatch(text_name)
    if scale is not None:
        kind = "ffn_down_exps" if scale[2] == "per_expert_" else "ffn_gate_inp"
        return f"blk.{int(scale[1])}.{kind}.scale"
    return text_name.replace(".e_score_correction_bias", ".e_score_correction.bias")


def _experts_name(name: str) -> str | None:
    # The tables know stacks only, and only in some architectures.
    match = _EXPERTS.fullmatch(name)
    if match is None or int(match[1]) >= MAX_BLOCKS:
        return None
    stack = f"blk.{int(match[1])}.ffn_{match[3]}_exps.weight"
    return stack if match[2] is None else expert_name(stack, int(match[2]))


def _num_blocks(names: Iterable[str]) -> int:
    # From the names, not from the config: blocks after the last one hold MTP heads.
    blocks = [int(match[1]) for match in map(_BLOCK.search, names) if match]
    return min(max(blocks, default=-1) + 1, MAX_BLOCKS)
