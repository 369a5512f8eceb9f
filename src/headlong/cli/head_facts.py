"""Describe a head, and the backbones it fits, from the head's own files.

In:  the path of a head folder, a head's GGUF file, or MTP layers apart.
Out: `HeadFacts`; None for a whole model. Nothing of its weights is read.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headlong.errors import HeadError
from headlong.heads.eagle3 import NUM_TAPS, named_taps
from headlong.heads.eagle3_gguf import EAGLE3
from headlong.heads.head_files import CONFIG_FILE, MAX_CONFIG_BYTES, read_head_weights
from headlong.heads.head_weights import HeadWeights
from headlong.models.settings import Settings
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.mapped_file import read_json_object

_SWITCHES = ("norm_before_residual", "norm_before_fc", "norm_output")


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """A head by itself; None where its files do not say."""

    path: Path
    kind: str
    hidden_size: int | None
    """Width of the hidden states that it reads."""
    vocab_size: int | None
    """Tokens of the model it is for."""
    architecture: str | None
    """Of the model, where the head is one of its own MTP layers."""
    num_layers: int | None
    """Layers of the model, known where the head is one of its own MTP layers."""
    tap_layers: tuple[int, ...]
    """Layers whose inputs it names; the model needs more layers than the last of them."""
    draft_vocab_size: int | None
    switches: tuple[str, ...]
    own_parts: tuple[str, ...]
    """Which of embedding and LM head it brings."""
    model: str | None
    """The model it names as its own."""
    stored_as: tuple[str, ...]
    stored_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {**asdict(self), "path": str(self.path)}


def describe_head_file(path: Path) -> HeadFacts | None:
    """Describe a head; None for what is a whole model, or no head at all."""
    if path.is_dir() and len(list(path.glob("*.safetensors"))) > 1:
        return None  # the shards of a model; a head is in one file
    try:
        weights = read_head_weights(path)
    except HeadError:
        if _says_it_is_a_head(path):
            raise
        return None
    checkpoint = weights.checkpoint
    has_backbone = any(name.startswith("model.layers.0.") for name in weights.tensors)
    is_native = checkpoint is not None and weights.kind == "nextn"
    if has_backbone or (is_native and checkpoint and "token_embd.weight" in checkpoint.tensors):
        return None
    return _facts(path, weights)


def _says_it_is_a_head(path: Path) -> bool:
    """Tell whether a file's metadata name a head, so that what is wrong with it is said."""
    if path.is_file() and path.suffix == ".gguf":
        return open_checkpoint(path).architecture == EAGLE3
    config_path = (path if path.is_dir() else path.parent) / CONFIG_FILE
    if not config_path.is_file():
        return False
    config = read_json_object(config_path, MAX_CONFIG_BYTES)
    named = str(config.get("architectures")).lower()
    return "speculators_model_type" in config or "eagle" in named or "medusa" in named


def _facts(path: Path, weights: HeadWeights) -> HeadFacts:
    keys, tensors, checkpoint = Settings(weights.config, path), weights.tensors, weights.checkpoint
    is_native = checkpoint is not None and weights.kind == "nextn"
    verifier = keys.value("speculators_config.verifier.name_or_path")
    found = {role: tensors.get(name) for role, name in _names(weights).items()}
    shapes = {role: one.shape for role, one in found.items() if one and len(one.shape) == 2}
    hidden_size, vocab_size = keys.integer("hidden_size", 0), keys.integer("vocab_size", 0)
    if "projection" in shapes:  # EAGLE-3's reads three states side by side
        shape = shapes["projection"]
        hidden_size = shape[-1] // NUM_TAPS if weights.kind == EAGLE3 else shape[0]
    return HeadFacts(
        path=path,
        kind=weights.kind,
        hidden_size=hidden_size or None,
        vocab_size=vocab_size or shapes.get("embedding", (0,))[0] or None,
        architecture=_architecture(weights),
        num_layers=checkpoint.num_layers if is_native and checkpoint else None,
        tap_layers=named_taps(keys) if weights.kind == EAGLE3 else (),
        draft_vocab_size=None if weights.vocabulary is None else len(weights.vocabulary),
        switches=tuple(name for name in _SWITCHES if _is_on(keys, name)),
        own_parts=tuple(role for role in ("embedding", "LM head") if role in shapes),
        model=verifier if isinstance(verifier, str) else None,
        stored_as=tuple(sorted({tensor.type.name for tensor in tensors.values()})),
        stored_bytes=sum(tensor.num_bytes for tensor in tensors.values()),
    )


def _names(weights: HeadWeights) -> dict[str, str]:
    """Return the head's names of the tensors that determine which backbones it fits."""
    if weights.kind == "assistant":
        return {"projection": "nextn.post_projection.weight"}
    if weights.checkpoint is None:
        own = {"embedding": "embed_tokens.weight", "LM head": "lm_head.weight"}
        return own | ({"projection": "fc.weight"} if weights.kind in (EAGLE3, "nextn") else {})
    around = f"blk.{weights.checkpoint.num_layers}.nextn."
    return {
        "projection": f"{around}eh_proj.weight",
        "embedding": f"{around}embed_tokens.weight",
        "LM head": f"{around}shared_head_head.weight",
    }


def _architecture(weights: HeadWeights) -> str | None:
    if weights.kind == "assistant":
        return "gemma4"
    return None if weights.checkpoint is None else weights.checkpoint.architecture


def _is_on(keys: Settings, name: str) -> bool:
    usual = name == "norm_before_residual" and keys.has("speculators_model_type")
    return keys.flag(name, default=usual)
