"""A head's weights as a plain record, from a file, a checkpoint, training or a test.

In:  arrays, or tensors mapped from a file.
Out: `HeadWeights`, under one spelling of tensor names per kind of head, and `HeadParts`, which
hands the tensors to a backend after it has checked that they are all there, fit and are finite.
Knows nothing of how a head computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from headlong.arrays import FloatArray, IntArray
from headlong.config import DEFAULT_HEAD_QUANT, HeadQuant, QuantName
from headlong.errors import HeadError
from headlong.models.settings import Settings
from headlong.ops.blocks import Linear, Matrix, Norm
from headlong.ops.op_set import Ops
from headlong.weights.checkpoint import Checkpoint
from headlong.weights.mlx_groups import PACKED, can_pack, pack_matrix
from headlong.weights.tensors import StoredTensor

HeadKind: TypeAlias = Literal["eagle3", "nextn", "medusa", "meta", "assistant"]
Shape: TypeAlias = tuple[int, ...]
FloatType: TypeAlias = Literal["float32", "float16", "bfloat16"]

FLOAT_TYPES: dict[FloatType, GGMLQuantizationType] = {
    "float32": GGMLQuantizationType.F32,
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
}

NO_HEAD_REMEDY = "draft without one: --drafter ngram (drafter='ngram' in Python)"
HEAD_REMEDY = (
    f"Name a head made for this model with --head DIR (head=… in Python), or {NO_HEAD_REMEDY}."
)

QUANT_KEY = "headlong_quant"
"""The key of config.json that names the format a head was made for; other engines skip it."""

_NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """Everything that makes a head, apart from the backbone it sits on."""

    kind: HeadKind
    config: Mapping[str, Any]
    """What its config.json holds: sizes, rotary base, switches."""
    tensors: Mapping[str, StoredTensor]
    vocabulary: IntArray | None = None
    """(V_draft,) backbone token id of every draft id, ascending for eagle3; None for all tokens."""
    source: str = "The head"
    """Where it came from, for messages."""
    quant: QuantName | None = None
    """The format its matrices are packed in; None packs them as they are stored."""
    is_explicit: bool = False
    """Whether a user named that format: then quantised tensors are repacked too."""
    checkpoint: Checkpoint | None = None
    """The checkpoint it is an MTP layer of, which is built as that model's own layers are."""
    repeated: tuple[str, ...] = ()
    """Tensors that were left out since they only repeat the model's."""

    def packed(self, asked: HeadQuant) -> "HeadWeights":
        """Return the head, to be packed in the requested format."""
        is_explicit = asked not in ("auto", "stored")
        return replace(self, quant=choose_quant(asked, self.config), is_explicit=is_explicit)

    def in_four_bits(self) -> "HeadWeights":
        """Return the head with its matrices stored in 4 bits, as packing to q4 rounds them."""
        tensors = {
            name: pack_matrix(tensor) if can_pack(tensor) else tensor
            for name, tensor in self.tensors.items()
        }
        return replace(self, tensors=tensors, config={**self.config, QUANT_KEY: "q4"})


def choose_quant(asked: HeadQuant, config: Mapping[str, Any]) -> QuantName | None:
    """Return the format to pack a head in, given its config.json; None for that of its file."""
    if asked != "auto":
        return None if asked == "stored" else asked
    formats: tuple[QuantName, ...] = get_args(QuantName)
    made_for = config.get(QUANT_KEY, DEFAULT_HEAD_QUANT)
    if made_for not in formats:
        raise HeadError(
            f"The head's config.json has {QUANT_KEY} = {made_for!r}.",
            f"Name a format with --head-quant: {', '.join(formats)}.",
        )
    return formats[formats.index(made_for)]


def store_array(name: str, values: NDArray[Any], float_type: FloatType = "float32") -> StoredTensor:
    """Return an array as a tensor stored in `float_type`."""
    rows = np.ascontiguousarray(values, dtype=np.float32).reshape(_row_shape(values.shape))
    encoded = quantize(rows, FLOAT_TYPES[float_type])
    data = np.ascontiguousarray(encoded).view(np.uint8).reshape(len(rows), -1)
    return StoredTensor(name, tuple(values.shape), FLOAT_TYPES[float_type], data)


def store_arrays(
    arrays: Mapping[str, NDArray[Any]], float_type: FloatType = "float32"
) -> dict[str, StoredTensor]:
    """Return named arrays, as training leaves them, as stored tensors."""
    return {name: store_array(name, values, float_type) for name, values in arrays.items()}


class HeadParts:
    """Hands out a head's tensors as blocks' parts, once `check` has found them all in order."""

    def __init__(self, weights: HeadWeights, ops: Ops, norm_offset: float = 0.0) -> None:
        self._weights = weights
        self._ops = ops
        self._norm_offset = norm_offset
        self._used: dict[str, StoredTensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors checked so far, as stored."""
        return sum(tensor.num_bytes for tensor in self._used.values())

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        """Names of tensors that nothing asked for."""
        return tuple(sorted(self._weights.tensors.keys() - self._used.keys()))

    def has(self, name: str) -> bool:
        """Tell whether the head brings a tensor."""
        return name in self._weights.tensors

    def check(self, shapes: Mapping[str, Shape]) -> None:
        """Refuse the head unless it has every tensor named, of this shape, with finite numbers."""
        tensors, source = self._weights.tensors, self._weights.source
        missing = [name for name in shapes if name not in tensors]
        if missing:
            raise HeadError(
                f"{source} lacks {len(missing)} of {len(shapes)} tensors: {list_names(missing)}.",
                "Its file is stripped or of another kind; export the head again in full.",
            )
        misshaped = [
            f"{name} is {list(tensors[name].shape)}, should be {list(shape)}"
            for name, shape in shapes.items()
            if tensors[name].shape != shape
        ]
        if misshaped:
            raise HeadError(
                f"{source} does not fit this backbone: {list_names(misshaped)}.", HEAD_REMEDY
            )
        broken = [name for name in shapes if not _is_finite(tensors[name])]
        if broken:
            raise HeadError(
                f"{source} has NaN or infinite numbers in {list_names(broken)}.",
                "Its training diverged or its file is damaged; use another copy.",
            )
        self._used.update({name: tensors[name] for name in shapes})

    def refuse_leftovers(self, prefix: str) -> None:
        """Refuse a layer that has tensors nothing computes with: it would draft wrongly."""
        extra = [
            name
            for name in self.unused_tensors
            if name.startswith(prefix) and not name.endswith("rotary_emb.inv_freq")
        ]
        if extra:
            raise HeadError(
                f"{self._weights.source} has parts that no block here computes: "
                f"{list_names(extra)}.",
                HEAD_REMEDY,
            )

    def matrix(self, name: str) -> Matrix:
        """Return a matrix packed by the backend.

        What the file holds quantised stays as it is, unless a user named another format.
        """
        tensor = self._used[name]
        quant = self._weights.quant
        is_other = self._weights.is_explicit and not (quant == "q4" and tensor.type == PACKED)
        is_packed_anew = is_other or tensor.type in FLOAT_TYPES.values()
        return self._ops.matrix(tensor, quant if is_packed_anew else None)

    def vector(self, name: str) -> FloatArray:
        """Return a vector in float32."""
        return self._used[name].to_float32().copy()

    def linear(self, name: str) -> Linear:
        """Return a projection, with its bias where one was checked."""
        bias = self._used.get(f"{name}.bias")
        return Linear(
            self.matrix(f"{name}.weight"), None if bias is None else bias.to_float32().copy()
        )

    def norm(self, name: str, eps: float) -> Norm:
        """Return a norm; zero-centred weights get their 1 here."""
        weight: FloatArray = self._used[f"{name}.weight"].to_float32() + np.float32(
            self._norm_offset
        )
        return Norm(weight, eps)

    def optional_norm(self, name: str, eps: float) -> Norm | None:
        """Return a norm, or None where the head has none."""
        return self.norm(name, eps) if f"{name}.weight" in self._used else None


def list_names(names: list[str]) -> str:
    """Return names as a message shows them: the first dozen, then how many more."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return shown if more <= 0 else f"{shown} and {more} more"


def check_vocabulary(weights: HeadWeights, vocab_size: int) -> int:
    """Return how many tokens a head drafts from; refuse a vocabulary that is not the backbone's."""
    keys = Settings(weights.config, Path(weights.source))
    made_for = keys.integer("vocab_size", vocab_size)
    if made_for != vocab_size:
        raise HeadError(
            f"{weights.source} was made for {made_for} tokens; the backbone has {vocab_size}.",
            HEAD_REMEDY,
        )
    vocabulary = weights.vocabulary
    num_drafted = vocab_size if vocabulary is None else len(vocabulary)
    announced = keys.integer("draft_vocab_size", keys.integer("truncated_vocab_size", num_drafted))
    if announced != num_drafted:
        raise HeadError(
            f"{weights.source} announces {announced} draft tokens, but maps {num_drafted} of the "
            f"backbone's {vocab_size}.",
            "Its d2t tensor (or token_map) is missing or was cut; export the head again.",
        )
    if vocabulary is not None:
        _check_ids(weights.source, vocabulary, vocab_size)
    return num_drafted


def _check_ids(source: str, vocabulary: IntArray, vocab_size: int) -> None:
    if not 0 < len(vocabulary) <= vocab_size:
        raise HeadError(
            f"{source} drafts from {len(vocabulary)} tokens; the backbone has {vocab_size}.",
            HEAD_REMEDY,
        )
    lowest, highest = int(vocabulary.min()), int(vocabulary.max())
    if lowest < 0 or highest >= vocab_size:
        raise HeadError(
            f"{source} maps draft tokens to ids {lowest}…{highest}; the backbone has "
            f"0…{vocab_size - 1}.",
            HEAD_REMEDY,
        )
    num_distinct = len(np.unique(vocabulary))
    if num_distinct < len(vocabulary):
        raise HeadError(
            f"{source} maps {len(vocabulary)} draft tokens to only {num_distinct} ids.",
            "Its d2t or token_map is damaged; export the head again.",
        )


def _is_finite(tensor: StoredTensor) -> bool:
    return all(np.isfinite(block.to_float32()).all() for block in tensor.row_blocks())


def _row_shape(shape: Shape) -> tuple[int, int]:
    """Return (rows, columns) of a tensor as it is stored; a vector is one row."""
    columns = shape[-1] if shape else 1
    return (int(np.prod(shape[:-1], dtype=np.int64)), columns)
