"""The MTP layers of a model, as either format stores them.

In:  a model, or its MTP layers apart, as GGUF or safetensors.
Out: entries of a file in either format, under its names; each is made when it is its turn.
Names and layouts come from the rules by which such files are read (`weights/`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from gguf import GGMLQuantizationType

from headlong.errors import HeadError
from headlong.export.conversion import Conversion
from headlong.export.mtp_pieces import HeadSizes, folder_pieces, gguf_pieces
from headlong.heads.head_weights import FLOAT_TYPES, HEAD_REMEDY, FloatType
from headlong.heads.native_nextn import find_stripped, read_native_nextn
from headlong.models.settings import Settings
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.gguf_writer import GgufEntry
from headlong.weights.layout import name_in_gguf, published
from headlong.weights.mtp_spellings import SPELLINGS, published_names
from headlong.weights.tensors import StoredTensor

Format: TypeAlias = Literal["gguf", "safetensors"]
Conversions: TypeAlias = Mapping[FloatType, Conversion]
"""One for every type, which counts what it had to round."""

_BLOCK = re.compile(r"blk\.(\d{1,4})\.")
_ROUTER = re.compile(r"blk\.\d+\.ffn_gate_inp(?:_shexp)?\.weight")
_FLOATS: Mapping[GGMLQuantizationType, FloatType] = {
    stored: name for name, stored in FLOAT_TYPES.items()
}


@dataclass(frozen=True, slots=True)
class MtpLayers:
    """The MTP modules behind a backbone of so many layers."""

    checkpoint: Checkpoint
    num_layers: int
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """GGUF's name of the model's architecture."""
        return self.checkpoint.architecture

    @property
    def num_modules(self) -> int:
        """How many there are, each a block behind the backbone's last."""
        blocks = {int(match[1]) for match in map(_BLOCK.match, self.tensors) if match}
        return max(blocks) + 1 - self.num_layers

    @property
    def num_heads(self) -> int | None:
        """How many attention heads the model has; None where the file does not say."""
        return self._count("attention.head_count", "num_attention_heads")

    @property
    def num_chosen_experts(self) -> int | None:
        """How many experts a row goes through; None where there are none."""
        return self._count("expert_used_count", "num_experts_per_tok")

    @property
    def head_sizes(self) -> HeadSizes | None:
        """What latent attention is cut by; None where there is none."""
        keys_up = [t for name, t in self.tensors.items() if name.endswith("attn_k_b.weight")]
        # GGUF files do not say it, but have cut them already.
        dim = keys_up[0].shape[-1] if keys_up else self._count(None, "qk_nope_head_dim")
        if dim is None:
            return None
        if self.num_heads is None:
            raise HeadError(
                f"{self.checkpoint.path} does not say how many attention heads its model has.",
                "Convert from the whole model instead.",
            )
        return HeadSizes(self.num_heads, dim)

    def _count(self, gguf_name: str | None, name: str) -> int | None:
        keys = Settings(self.checkpoint.metadata, self.checkpoint.path)
        if self.checkpoint.format == "gguf":
            if gguf_name is None:
                return None
            name = f"{self.architecture}.{gguf_name}"
        elif keys.has("text_config"):
            name = f"text_config.{name}"
        return keys.integer(name) if keys.has(name) else None


def read_mtp_layers(path: Path) -> MtpLayers:
    """Find the MTP layers of a model, or refuse it with the reason."""
    checkpoint = open_checkpoint(path)
    check_family(checkpoint)
    num_layers = checkpoint.num_layers
    weights = None if num_layers is None else read_native_nextn(checkpoint, num_layers)
    if num_layers is None or weights is None:
        raise find_stripped(checkpoint) or HeadError(
            f"{path} holds no MTP layers.", f"Take a file that kept them. {HEAD_REMEDY}"
        )
    return MtpLayers(checkpoint, num_layers, weights.tensors)


def check_family(checkpoint: Checkpoint) -> None:
    """Refuse a model of which we do not know how its MTP layers are published."""
    if checkpoint.architecture not in SPELLINGS:
        raise HeadError(
            f"{checkpoint.path} is of architecture {checkpoint.architecture!r}, whose MTP layers "
            "are not converted here.",
            f"That is done for {', '.join(SPELLINGS)}.",
        )


def entries_as(
    layers: MtpLayers, form: Format, float_type: FloatType | None, conversions: Conversions
) -> Iterator[GgufEntry]:
    """Yield the layers as files of a format have them.

    Numbers keep their type, or get the one asked for; what is quantised becomes float16 in folders.
    Vectors and routers are float32 in GGUF, as llama.cpp needs them.
    """
    cut = gguf_pieces if form == "gguf" else folder_pieces
    pieces = list(cut(_entries(layers, form, conversions), layers.head_sizes))
    names = _names(layers, form, [piece.name for piece in pieces])
    for piece in pieces:
        wanted = _wanted_type(piece, form, float_type)
        yield replace(_typed(piece, wanted, conversions), name=names[piece.name])


def _entries(layers: MtpLayers, form: Format, conversions: Conversions) -> Iterator[GgufEntry]:
    """Yield the tensors one by one, with norms centred as the format has them."""
    for name, tensor in layers.tensors.items():
        stored = published(layers.architecture, tensor) if form == "safetensors" else tensor
        if isinstance(stored.type, GGMLQuantizationType):
            yield GgufEntry(name, stored.shape, stored.type, partial(replace, stored))
        else:  # numbers beside scales of their own, as neither format has them
            make = partial(conversions["bfloat16"].apply, stored)
            yield GgufEntry(name, stored.shape, GGMLQuantizationType.BF16, make)


def _names(layers: MtpLayers, form: Format, names: list[str]) -> dict[str, str]:
    if form == "gguf":
        return {name: name_in_gguf(layers.architecture, name) for name in names}
    return published_names(layers.architecture, names, layers.num_layers)


def _wanted_type(
    piece: GgufEntry, form: Format, float_type: FloatType | None
) -> GGMLQuantizationType:
    is_vector = len(piece.shape) == 1 or _ROUTER.fullmatch(piece.name) is not None
    if form == "gguf" and is_vector:
        return GGMLQuantizationType.F32
    if piece.type in _FLOATS:
        return piece.type if float_type is None else FLOAT_TYPES[float_type]
    return piece.type if form == "gguf" else FLOAT_TYPES[float_type or "float16"]


def _typed(entry: GgufEntry, wanted: GGMLQuantizationType, conversions: Conversions) -> GgufEntry:
    if entry.type == wanted:
        return entry

    def make() -> StoredTensor:
        return conversions[_FLOATS[wanted]].apply(entry.make())

    return replace(entry, type=wanted, make=make)
