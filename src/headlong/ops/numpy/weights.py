"""Weights and caches of the numpy backend: everything unpacked to float32.

Projections do not mix rows (exactness): they always run in tiles of `TILE` rows, padded with zeros,
so that BLAS takes the same path for a row whatever stands beside it. Whether this BLAS keeps rows
apart is checked for every matrix; where it does not, rows go through it one by one.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from headlong.arrays import FloatArray
from headlong.errors import BackendError

TILE = 8
"""Rows of one matrix product. One row costs as much as eight, so a short draft is checked free."""

_ROUNDINGS = {
    "q4": GGMLQuantizationType.Q4_1,
    "q5": GGMLQuantizationType.Q5_1,
    "q8": GGMLQuantizationType.Q8_0,
    "f16": GGMLQuantizationType.F16,
    "bf16": GGMLQuantizationType.BF16,
    "f32": GGMLQuantizationType.F32,
}


class NumpyMatrix:
    """A weight matrix unpacked to float32, and how many rows one product over it may take."""

    __slots__ = ("tile", "values")

    def __init__(self, values: FloatArray) -> None:
        self.values = values  # (outputs, inputs)
        self.tile = TILE if _is_batch_invariant(values) else 1

    def times(self, x: FloatArray) -> FloatArray:
        """Multiply every row: (N, inputs) → (N, outputs)."""
        num_rows = len(x)
        num_tiles = -(-num_rows // self.tile)
        padded = np.zeros((num_tiles * self.tile, x.shape[1]), dtype=np.float32)
        padded[:num_rows] = x
        result = np.empty((len(padded), len(self.values)), dtype=np.float32)
        for start in range(0, len(padded), self.tile):
            stop = start + self.tile
            np.matmul(padded[start:stop], self.values.T, out=result[start:stop])
        return result[:num_rows]


class NumpyKVLayer:
    """Keys and values of one layer and sequence in float32."""

    __slots__ = ("keys", "values")

    def __init__(self, num_kv_heads: int, key_dim: int, value_dim: int) -> None:
        self.keys = np.empty((num_kv_heads, 0, key_dim), dtype=np.float32)  # (G, capacity, D)
        self.values = np.empty((num_kv_heads, 0, value_dim), dtype=np.float32)

    @property
    def bytes_per_position(self) -> int:
        """Bytes that room for one more position takes."""
        num_numbers = self.keys.shape[2] + self.values.shape[2]
        return len(self.keys) * num_numbers * self.keys.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes reserved so far."""
        return int(self.keys.nbytes + self.values.nbytes)

    def reserve(self, capacity: int, others: Sequence[Self] = ()) -> None:
        """Make room for `capacity` positions here and in `others`, keeping what is there."""
        for layer in (self, *others):
            layer._grow(capacity)

    def _grow(self, capacity: int) -> None:
        self.keys, self.values = _grown(self.keys, capacity), _grown(self.values, capacity)

    def copy_from(self, other: Self, num_positions: int) -> None:
        """Hold the first `num_positions` of `other`, making room for them."""
        if num_positions > self.keys.shape[1]:
            self.reserve(num_positions)
        self.keys[:, :num_positions] = other.keys[:, :num_positions]
        self.values[:, :num_positions] = other.values[:, :num_positions]

    def write(self, position: int, keys: FloatArray, values: FloatArray) -> None:
        """Store (n, G, D) keys and values, each of their own width, from `position` on."""
        stop = position + len(keys)
        self.keys[:, position:stop] = keys.swapaxes(0, 1)
        self.values[:, position:stop] = values.swapaxes(0, 1)


def _grown(held: FloatArray, capacity: int) -> FloatArray:
    grown = np.empty((held.shape[0], capacity, held.shape[2]), dtype=np.float32)
    grown[:, : held.shape[1]] = held
    return grown


def round_to(values: FloatArray, quant: str) -> FloatArray:
    """Round to what a format can hold; rows that are not whole groups stay as they are."""
    if quant == "q6":
        return values if values.shape[-1] % 32 else _round_to_six_bits(values)
    kind = _ROUNDINGS.get(quant)
    if kind is None:
        problem = f"There is no weight format {quant!r}."
        raise BackendError(problem, f"Known are {', '.join(sorted([*_ROUNDINGS, 'q6']))}.")
    if values.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        return values
    rounded: FloatArray = dequantize(quantize(values, kind), kind).reshape(values.shape)
    return rounded


def _round_to_six_bits(values: FloatArray) -> FloatArray:
    """Round to 64 levels: 16 numbers share a scale, an integer multiple of what 256 share."""
    num_columns = values.shape[-1]
    padded = np.pad(values, ((0, 0), (0, -num_columns % 256)))
    groups = padded.reshape(-1, 16, 16)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(31)
    shared = scales.max(axis=1, keepdims=True) / np.float32(127)
    shared[shared == 0] = 1
    steps = shared * np.rint(scales / shared)
    levels = np.rint(groups / np.where(steps == 0, np.float32(1), steps)).clip(-32, 31)
    rounded: FloatArray = (levels * steps).reshape(padded.shape)[:, :num_columns]
    return np.ascontiguousarray(rounded)


def _is_batch_invariant(values: FloatArray) -> bool:
    """Check that a row's product does not depend on its place in the tile or on its mates.

    BLAS chooses its kernels by shape, not by value, so one test with random rows settles a shape.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((TILE, values.shape[1]), dtype=np.float32)
    alone = np.zeros_like(x)
    alone[TILE - 1] = x[0]
    with np.errstate(all="ignore"):  # weights may be damaged; that shows when they are used
        expected = x @ values.T
        turned = {shift: np.roll(x, shift, axis=0) @ values.T for shift in (1, TILE // 2)}
        last = (alone @ values.T)[TILE - 1]
    return np.array_equal(last, expected[0], equal_nan=True) and all(
        np.array_equal(result, np.roll(expected, shift, axis=0), equal_nan=True)
        for shift, result in turned.items()
    )
