"""Weight matrices of the MLX backend: packed in affine groups where the file is, floats elsewhere.

In:  stored tensors, rows. Out: products in which a row's bits do not depend on the other rows.
MLX takes one kernel for one row and maybe another for many. Which numbers of rows give a row the
same bits is measured for every shape of matrix when the first of it is made (`_measure`); so is, on
Metal, whether our own kernels do as they should (`ops/mlx/metal.py`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headlong.arrays import FloatArray
from headlong.ops.mlx import metal as mlx_metal
from headlong.ops.mlx.host import finish, is_on_metal, read
from headlong.ops.mlx.metal import multiply_rows
from headlong.ops.mlx.packing import GROUP, Packing, packing_of, repack
from headlong.ops.numpy.weights import round_to
from headlong.weights.tensors import StoredTensor, StoredType

TILE = 8
"""Rows of one matrix product at most."""

_PACKED = {
    "q4": GGMLQuantizationType.Q4_1,
    "q5": GGMLQuantizationType.Q5_1,
    "q8": GGMLQuantizationType.Q8_0,
}
"""Precisions that may be asked for and are kept packed; all others are kept as floats."""


_FLOATS: dict[StoredType, Any] = {
    GGMLQuantizationType.F16: mx.float16,
    GGMLQuantizationType.BF16: mx.bfloat16,
    GGMLQuantizationType.F32: mx.float32,
}
_NAMES = {mx.float32: "f32", mx.bfloat16: "bf16"}


class RowBatching(NamedTuple):
    """How rows go through a matrix so that none affects another."""

    most: int
    """Rows of one product at most."""
    is_padded: bool = False
    """Whether it is always so many, filled up with zeros, since kernels differ between numbers."""
    uses_metal_kernel: bool = False
    """Whether our own kernel multiplies, which takes any number of rows."""


_measured: dict[tuple[Any, ...], RowBatching] = {}

kernel_problems: dict[str, str] = {}
"""Why our own kernels are not used on this device, by what the matrices hold."""


class MlxMatrix:
    """A weight matrix: floats, or levels with the scales and biases of their groups."""

    __slots__ = ("bits", "group_size", "parts", "rows_at_once")

    def __init__(self, parts: Sequence[Any], bits: int = 0, group_size: int = 0) -> None:
        self.parts = tuple(parts)
        """(values,), or (words, scales, biases) of packed ones; rows first."""
        self.bits, self.group_size = bits, group_size
        finish(self.parts)
        self.rows_at_once = RowBatching(1)
        self.rows_at_once = _rows_at_once(self)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(int(part.nbytes) for part in self.parts)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What two matrices must have in common to be joined."""
        return self.bits, self.group_size, *(part.dtype for part in self.parts)

    @property
    def num_outputs(self) -> int:
        """Rows of the matrix."""
        return int(self.parts[0].shape[0])

    def times(self, x: Any) -> Any:
        """Multiply every row as if it were alone: (N, inputs) → (N, outputs)."""
        most, is_padded, uses_metal_kernel = self.rows_at_once
        if uses_metal_kernel:
            return multiply_rows(x, self.parts, self.bits, self.group_size)
        num_rows = len(x)
        if is_padded and num_rows % most:
            x = mx.pad(x, ((0, -num_rows % most), (0, 0)))
        products = [self.multiply(x[start : start + most]) for start in range(0, len(x), most)]
        joined = products[0] if len(products) == 1 else mx.concatenate(products)
        return joined if len(joined) == num_rows else joined[:num_rows]

    def multiply(self, x: Any) -> Any:
        """Multiply rows with whatever kernel MLX takes for so many."""
        if not self.bits:
            return x @ self.parts[0].T
        sizes = {"group_size": self.group_size, "bits": self.bits}
        return mx.quantized_matmul(x, *self.parts, **sizes).astype(x.dtype)

    def gather(self, x: Any, chosen: Any) -> Any:
        """Multiply single rows with matrices of a stack: (N, k, inputs), (N, k) → (N, k, outputs).

        One row is multiplied at a time, since MLX may choose a kernel by how many there are.
        """
        rows = x[..., None, :]
        if not self.bits:
            return mx.gather_mm(rows, self.parts[0].swapaxes(-1, -2), rhs_indices=chosen)[..., 0, :]
        sizes = {"group_size": self.group_size, "bits": self.bits}
        found = mx.gather_qmm(rows, *self.parts, rhs_indices=chosen, **sizes)[..., 0, :]
        return found.astype(x.dtype)

    def rows(self, indices: Any) -> Any:
        """Return some rows as floats, which is what an embedding table is for."""
        return self._unpacked([part[indices] for part in self.parts])

    def values(self) -> Any:
        """Return the whole matrix as floats."""
        return self._unpacked(self.parts)

    def _unpacked(self, parts: Sequence[Any]) -> Any:
        if not self.bits:
            return parts[0]
        return mx.dequantize(*parts, group_size=self.group_size, bits=self.bits)


def join(matrices: Sequence[MlxMatrix]) -> MlxMatrix:
    """Put matrices of one kind under one another; they become views of what is returned."""
    parts = zip(*(one.parts for one in matrices), strict=True)
    joined = MlxMatrix(
        [mx.concatenate(part) for part in parts], matrices[0].bits, matrices[0].group_size
    )
    first = 0
    for one in matrices:
        stop = first + one.num_outputs
        one.parts = tuple(part[first:stop] for part in joined.parts)
        first = stop
    return joined


def stack(matrices: Sequence[MlxMatrix]) -> MlxMatrix:
    """Put matrices of one kind and shape beside each other; they become views of the stack."""
    stacked = object.__new__(MlxMatrix)  # its rows go one by one: nothing is to be measured
    parts = zip(*(one.parts for one in matrices), strict=True)
    # Half-precision scales beside bfloat16 rows would be widened in every pass.
    stacked.parts = tuple(_wide(mx.stack(part)) for part in parts)
    stacked.bits, stacked.group_size = matrices[0].bits, matrices[0].group_size
    finish(stacked.parts)
    for place, one in enumerate(matrices):
        one.parts = tuple(part[place] for part in stacked.parts)
    return stacked


def make_matrix(tensor: StoredTensor, quant: str | None, dtype: Any) -> MlxMatrix:
    """Pack a stored matrix, rounded to the precision of `quant` if given."""
    packing = _packing(tensor, quant)
    if packing is None:
        values = tensor.to_float32()
        rounded = values if quant is None else round_to(values, quant)
        return MlxMatrix([mx.array(rounded).astype(dtype)])
    if quant is not None:
        kind = _PACKED[quant]
        data = quantize(tensor.to_float32(), kind)
        tensor = StoredTensor(tensor.name, tensor.shape, kind, data)
    words, *beside = repack(tensor)
    kept = _type_of_scales(packing, dtype)
    scales, biases = (mx.array(one).astype(kept) for one in beside)
    return MlxMatrix([mx.array(words), scales, biases], packing.bits, packing.group_size)


def matrix_bytes(tensor: StoredTensor, quant: str | None, dtype: Any) -> int:
    """Return the bytes of what `make_matrix` makes."""
    packing, numbers = _packing(tensor, quant), math.prod(tensor.shape)
    if packing is None:
        return int(numbers * dtype.size)
    scales = 2 * numbers // packing.group_size * _type_of_scales(packing, dtype).size
    return int(numbers * packing.bits // 8 + scales)


def matrix_format(tensor: StoredTensor, quant: str | None, dtype: Any) -> str:
    """Return the name of the format `make_matrix` packs a tensor in."""
    packing = _packing(tensor, quant)
    return f"q{packing.bits}" if packing is not None else _NAMES[dtype]


def _packing(tensor: StoredTensor, quant: str | None) -> Packing | None:
    """Return how a matrix is packed; None where floats are kept."""
    if quant is None:
        return packing_of(tensor)
    is_whole = quant in _PACKED and tensor.shape[-1] % GROUP == 0
    return Packing(int(quant[1:])) if is_whole else None


def _type_of_scales(packing: Packing, dtype: Any) -> Any:
    """Return what scales are kept as: on Metal as stored, where our kernel reads them."""
    if dtype == mx.float32 or packing.bits not in mlx_metal.BITS:
        return mx.float32
    return _FLOATS[packing.scales_type]


def _rows_at_once(matrix: MlxMatrix) -> RowBatching:
    """Return how rows go through a matrix; one measurement settles its kind and shape."""
    key = (*matrix.kind, *(part.shape for part in matrix.parts))
    if key not in _measured:
        _measured[key] = _measure(matrix)
    return _measured[key]


def _measure(matrix: MlxMatrix) -> RowBatching:
    """Find the most rows that are multiplied together without one affecting another.

    Kernels are chosen by shape, not by value, so random rows tell.
    """
    num_inputs = matrix.parts[0].shape[-1]
    if matrix.bits:
        num_inputs = num_inputs * 32 // matrix.bits
    dtype = mx.bfloat16 if is_on_metal() else mx.float32
    x = mx.random.normal((TILE, num_inputs), key=mx.random.key(0)).astype(dtype)
    if is_on_metal() and matrix.bits in (0, *mlx_metal.BITS):
        problem = _kernel_problem(matrix, x)
        if problem is None:
            return RowBatching(TILE, uses_metal_kernel=True)
        kernel_problems[f"{matrix.bits}-bit levels" if matrix.bits else "floats"] = problem
    whole = _bits(matrix.multiply(x))
    if _is_batch_invariant(matrix.multiply, x, range(2, TILE + 1)):
        return RowBatching(TILE)
    for shift in (1, TILE // 2):
        turned = _bits(matrix.multiply(mx.roll(x, shift, 0)))
        if not _are_equal(turned, np.roll(whole, shift, 0)):
            return RowBatching(1)
    last = _bits(matrix.multiply(mx.pad(x[:1], ((TILE - 1, 0), (0, 0)))))
    return RowBatching(TILE, is_padded=True) if _are_equal(last[-1], whole[0]) else RowBatching(1)


def _kernel_problem(matrix: MlxMatrix, x: Any) -> str | None:
    """Return why our kernel cannot be used on this device; None where it can.

    It has to keep rows apart, and to give what MLX's own gives.
    """

    def ours(rows: Any) -> Any:
        return multiply_rows(rows, matrix.parts, matrix.bits, matrix.group_size)

    try:
        found, expected = _bits(ours(x)), _bits(matrix.multiply(x))
        more = mx.concatenate([x, x[:3]])
        is_apart = _is_batch_invariant(ours, more, (2, 3, 5, TILE, len(more)))
    except (RuntimeError, TypeError, ValueError) as error:  # refused: that costs speed only
        return str(error).strip().partition("\n")[0]
    if not is_apart:
        return "a row gets other bits beside others"
    is_close = np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()
    return None if is_close else "its products are not MLX's"


def _is_batch_invariant(multiply: Callable[[Any], Any], x: Any, numbers: Sequence[int]) -> bool:
    """Tell whether rows get the same bits alone and as so many of them."""
    alone = _bits(mx.concatenate([multiply(x[i : i + 1]) for i in range(len(x))]))
    return all(_are_equal(_bits(multiply(x[:n])), alone[:n]) for n in numbers)


def _wide(part: Any) -> Any:
    return part.astype(mx.float32) if part.dtype == mx.float16 else part


def _bits(x: Any) -> FloatArray:
    return read(x)[0]


def _are_equal(one: FloatArray, other: FloatArray) -> bool:
    """Compare bit for bit, but let NaN equal NaN: damaged weights show when they are used."""
    return np.array_equal(one, other, equal_nan=True)
