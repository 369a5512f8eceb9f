"""Stored tensors: named, shaped and typed, not yet unpacked.

In:  bytes of a memory-mapped model file.
Out: `StoredTensor`, which a backend packs as it likes or unpacks to float32 (or integers).
Knows nothing of file layouts; `gguf_file` and `safetensors_file` make these.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from headlong.arrays import ByteArray, FloatArray, IntArray
from headlong.errors import TensorError
from headlong.weights.mapped_file import release_pages

_VALUES_AT_ONCE = 2**20
"""Of a block: 4 MB once unpacked."""

_INTEGER_DTYPES: "dict[StoredType, str]" = {
    GGMLQuantizationType.I8: "<i1",
    GGMLQuantizationType.I16: "<i2",
    GGMLQuantizationType.I32: "<i4",
    GGMLQuantizationType.I64: "<i8",
}


class FloatType(Enum):
    """Types of numbers that safetensors files have and GGUF has not."""

    F8_E4M3 = "F8_E4M3"
    """One byte: sign, 4 bits of exponent, 3 of fraction; no infinities."""


@dataclass(frozen=True, slots=True)
class AffineType:
    """Levels of MLX's affine quantisation: one stream of bits, the lowest first."""

    bits: int
    group_size: int
    """Numbers of a row that share a scale and a minimum."""

    @property
    def name(self) -> str:
        """Bits and size of groups, as `MLX4_64`."""
        return f"MLX{self.bits}_{self.group_size}"


StoredType: TypeAlias = GGMLQuantizationType | FloatType | AffineType


@dataclass(frozen=True, slots=True)
class BlockScales:
    """What the numbers of an FP8 matrix are multiplied with: one factor per block of them."""

    factors: "StoredTensor"  # (blocks down, blocks across)
    block: tuple[int, int]
    """Rows and columns of a block; the last ones may be smaller."""
    rows: IntArray | None = None
    """Where each row was before rows were moved or left out; None where all are in place."""

    def of_rows(self, rows: IntArray) -> "BlockScales":
        """Return the scales of some rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def spread(self, num_rows: int, num_columns: int) -> FloatArray:
        """Return a factor for every number: (rows, columns)."""
        rows = np.arange(num_rows) if self.rows is None else self.rows
        factors = self.factors.to_float32()[rows // self.block[0]]
        return factors[:, np.arange(num_columns) // self.block[1]]


@dataclass(frozen=True, slots=True)
class GroupScales:
    """What the levels of an MLX matrix mean: scale * level + minimum, in float32.

    MLX's own `dequantize` rounds that to the type of the scales; its products do not.
    """

    scales: "StoredTensor"  # (rows, groups of a row)
    minimums: "StoredTensor"

    def of_rows(self, rows: IntArray) -> "GroupScales":
        """Return the scales of some rows."""
        return GroupScales(self.scales.with_rows(rows), self.minimums.with_rows(rows))

    @property
    def num_bytes(self) -> int:
        """Bytes of both as stored."""
        return self.scales.num_bytes + self.minimums.num_bytes

    def unpack(self, levels: ByteArray) -> FloatArray:
        """Return the numbers of levels: (rows, columns)."""
        scales, minimums = self.scales.to_float32(), self.minimums.to_float32()
        groups = levels.reshape(*scales.shape, -1).astype(np.float32)
        groups *= scales[..., None]
        groups += minimums[..., None]
        return groups.reshape(len(levels), -1)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, as stored."""

    name: str
    """Our canonical name, spelled as in GGUF files (`blk.0.attn_q.weight`)."""
    shape: tuple[int, ...]
    """Rows first: (outputs, inputs) for a matrix."""
    type: StoredType
    """How the bytes encode numbers."""
    data: ByteArray
    """(rows, bytes per row); a one-dimensional tensor is one row. Usually memory-mapped."""
    scales: BlockScales | GroupScales | None = None
    """Of blocks where it is FP8, of groups where it is MLX's."""

    @property
    def num_bytes(self) -> int:
        """Bytes the tensor takes as stored."""
        beside = self.scales.num_bytes if isinstance(self.scales, GroupScales) else 0
        return int(self.data.nbytes) + beside

    def to_float32(self) -> FloatArray:
        """Unpack to float32 in the logical shape."""
        if isinstance(self.type, FloatType):
            return self._unpack_float8()
        if isinstance(self.type, AffineType):
            assert isinstance(self.scales, GroupScales), "such a type comes with its scales"
            with np.errstate(all="ignore"):
                levels = _read_levels(self.data, self.type.bits)
                return self.scales.unpack(levels).reshape(self.shape)
        if self.type == GGMLQuantizationType.BF16:  # the library goes row by row
            words = self.data.view("<u2").astype(np.uint32) << np.uint32(16)
            return words.view(np.float32).reshape(self.shape)
        if self.type == GGMLQuantizationType.F64:
            return self.data.view("<f8").reshape(self.shape).astype(np.float32)
        try:
            with np.errstate(all="ignore"):  # odd scales of a damaged block are not our warning
                values = dequantize(self.data, self.type).reshape(self.shape)
        except NotImplementedError as error:
            raise TensorError(
                f"Tensor {self.name} is stored as {self.type.name}, which cannot be unpacked.",
                "Use the model in F32, F16, BF16, Q8_0, Q4_0…Q5_1 or Q2_K…Q6_K.",
            ) from error
        # Safetensors files may put a float32 at an odd address; numpy copies only in that case.
        return np.require(values, dtype=np.float32, requirements=["C", "ALIGNED"])

    def _unpack_float8(self) -> FloatArray:
        if not isinstance(self.scales, BlockScales):
            raise TensorError(
                f"Tensor {self.name} is stored as {self.type.name} without scales of blocks "
                "(weight_scale_inv).",
                "Use the model in BF16, in FP8 with such scales, or a GGUF of it.",
            )
        values: FloatArray = _FLOAT8_VALUES[self.data] * self.scales.spread(*self.data.shape)
        return values.reshape(self.shape)

    def row_blocks(self, num_bytes: int | None = None) -> "Iterator[StoredTensor]":
        """Cut into blocks of rows, so that reading a tensor never holds it twice.

        A block has about `num_bytes`, or as many as are soon unpacked. It is there until the next
        one is asked for.
        """
        num_columns = self._num_columns
        size = max(1, num_columns if num_bytes is None else self.num_bytes // len(self.data))
        step = max(1, (num_bytes or _VALUES_AT_ONCE) // size)
        for first in range(0, len(self.data), step):
            yield self.cut(first, first + step)
            # From the start on: a page that is read brings those around it back.
            release_pages(self.data[: first + step])

    def cut(self, first: int, stop: int) -> "StoredTensor":
        """Return some consecutive rows; those of a stack of matrices are counted throughout."""
        data = self.data[first:stop]
        scales = self.scales and self.scales.of_rows(np.arange(first, first + len(data)))
        return replace(self, shape=(len(data), self._num_columns), data=data, scales=scales)

    @property
    def _num_columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    def to_int64(self) -> IntArray:
        """Unpack integers (token maps and masks of heads) in the logical shape."""
        dtype = _INTEGER_DTYPES.get(self.type)
        if dtype is None:
            raise TensorError(
                f"Tensor {self.name} is stored as {self.type.name}, but integers are needed there.",
                "The file was written with the wrong type; export it again.",
            )
        return self.data.view(dtype).reshape(self.shape).astype(np.int64)

    def with_rows(self, order: IntArray) -> "StoredTensor":
        """Return the same tensor with its rows (a vector's elements) in another order, or fewer."""
        if len(self.shape) != 1:
            scales = self.scales and self.scales.of_rows(order)
            shape = (len(order), *self.shape[1:])
            return replace(self, shape=shape, data=self.data[order], scales=scales)
        if block_sizes(self.type)[0] != 1:
            raise TensorError(
                f"Tensor {self.name} is a vector packed as {self.type.name}; it cannot be sorted.",
                "Use the model with its vectors in F32 or F16.",
            )
        elements = self.data.reshape(self.shape[0], -1)
        return replace(self, shape=(len(order),), data=elements[order].reshape(1, -1))

    def with_transposed_blocks(self, num_blocks: int) -> "StoredTensor":
        """Return a matrix whose equal blocks of rows are each transposed.

        Quantised numbers become float32, which is exact.
        """
        is_packed = block_sizes(self.type)[0] != 1 or self.scales is not None
        data = self.to_float32().view(np.uint8) if is_packed else self.data
        stored_type = GGMLQuantizationType.F32 if is_packed else self.type
        num_rows, num_columns = self.shape
        numbers = data.reshape(num_blocks, num_rows // num_blocks, num_columns, -1)
        turned = np.ascontiguousarray(numbers.swapaxes(1, 2))
        shape = (num_blocks * num_columns, num_rows // num_blocks)
        return StoredTensor(self.name, shape, stored_type, turned.reshape(shape[0], -1))


def block_sizes(stored_type: StoredType) -> tuple[int, int]:
    """Return how many numbers a quantisation block has, and in how many bytes."""
    if isinstance(stored_type, AffineType):
        return stored_type.group_size, stored_type.group_size * stored_type.bits // 8
    return (1, 1) if isinstance(stored_type, FloatType) else GGML_QUANT_SIZES[stored_type]


def _read_levels(data: ByteArray, bits: int) -> ByteArray:
    """Return a level per byte: (rows, columns). Eight of them lie in as many bytes as bits."""
    eights = np.ascontiguousarray(data).reshape(-1, bits).astype(np.uint16)
    levels = np.empty((len(eights), 8), dtype=np.uint8)
    for i in range(8):
        byte, shift = divmod(i * bits, 8)
        word = eights[:, byte] >> shift
        if shift + bits > 8:
            word |= eights[:, byte + 1] << (8 - shift)
        levels[:, i] = word & (2**bits - 1)
    return levels.reshape(len(data), -1)


def _float8_values() -> FloatArray:
    """Return what each byte means: ± 2 ** (e - 7) * 1.f, or 2 ** -6 * 0.f where e is 0."""
    byte = np.arange(256)
    exponents, fractions = byte >> 3 & 15, (byte & 7) / 8
    values: FloatArray = np.where(exponents > 0, 1 + fractions, fractions).astype(np.float32)
    values *= np.float32(2) ** (np.maximum(exponents, 1) - 7)
    values[byte & 127 == 127] = np.nan
    values[byte >= 128] *= -1
    return values


_FLOAT8_VALUES = _float8_values()
