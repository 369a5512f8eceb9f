"""The numpy backend: float32, readable, the oracle that faster backends are compared with.

Batch invariance (law 1) is had in two ways. Projections always run in tiles of `TILE` rows, padded
with zeros, so that BLAS takes the same path for a row whatever stands beside it; whether this BLAS
keeps rows apart is checked for every matrix shape when it is packed, and where it does not, rows go
through it one by one. Attention is computed row by row, so its shapes depend on the position alone.
"""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from headlong.arrays import FloatArray, IntArray
from headlong.errors import BackendError
from headlong.ops.backends import register_backend
from headlong.ops.host_ops import HostOps
from headlong.ops.numpy_host import NumpyHost
from headlong.ops.op_set import Attention, GatedMlp, KVLayer, LayerBlocks, Linear, Norm, Rope, Rows
from headlong.weights.tensors import StoredTensor

TILE = 8
"""Rows of one matrix product. One row costs as much as eight, so a short draft is checked free."""

_ROUNDINGS = {
    "q4": GGMLQuantizationType.Q4_1,
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
        self.tile = TILE if _keeps_rows_apart(values) else 1

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

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        self.keys = np.empty((num_kv_heads, 0, head_dim), dtype=np.float32)  # (G, capacity, D)
        self.values = np.empty_like(self.keys)

    @property
    def bytes_per_position(self) -> int:
        """Bytes that room for one more position takes."""
        num_kv_heads, _, head_dim = self.keys.shape
        return 2 * num_kv_heads * head_dim * self.keys.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes taken by the room made so far."""
        return int(self.keys.nbytes + self.values.nbytes)

    def reserve(self, capacity: int, others: Sequence[Self] = ()) -> None:
        """Make room for `capacity` positions here and in `others`, keeping what is there."""
        for layer in (self, *others):
            layer._grow(capacity)

    def _grow(self, capacity: int) -> None:
        num_kv_heads, held, head_dim = self.keys.shape
        for name in ("keys", "values"):
            grown = np.empty((num_kv_heads, capacity, head_dim), dtype=np.float32)
            grown[:, :held] = getattr(self, name)
            setattr(self, name, grown)

    def copy_from(self, other: Self, num_positions: int) -> None:
        """Hold the first `num_positions` of `other`, making room for them."""
        if num_positions > self.keys.shape[1]:
            self.reserve(num_positions)
        self.keys[:, :num_positions] = other.keys[:, :num_positions]
        self.values[:, :num_positions] = other.values[:, :num_positions]

    def write(self, position: int, keys: FloatArray, values: FloatArray) -> None:
        """Store (n, G, D) keys and values from `position` on."""
        stop = position + len(keys)
        self.keys[:, position:stop] = keys.swapaxes(0, 1)
        self.values[:, position:stop] = values.swapaxes(0, 1)


class NumpyOps:
    """The op set in numpy."""

    name = "numpy"
    host: HostOps = NumpyHost()

    def __init__(self, note: str = "") -> None:
        self.note = note

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> NumpyMatrix:
        """Unpack a stored tensor to float32, rounded to the precision of `quant` if given."""
        values = tensor.to_float32()
        return NumpyMatrix(values if quant is None else _round_to(values, quant))

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of a tensor unpacked to float32, whatever it is rounded to."""
        return math.prod(tensor.shape) * np.dtype(np.float32).itemsize

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format everything is unpacked to."""
        return "f32"

    def settle(self) -> None:
        """Do nothing: numpy's arrays are as large as they must be."""

    def make_kv_layer(self, num_kv_heads: int, head_dim: int) -> KVLayer:
        """Return an empty float32 cache layer."""
        return NumpyKVLayer(num_kv_heads, head_dim)

    def embed(self, table: NumpyMatrix, token_ids: IntArray, scale: float = 1.0) -> FloatArray:
        """Look up embedding rows: (N,) → (N, H)."""
        return table.values[token_ids] * np.float32(scale)

    def norm(self, x: FloatArray, norm: Norm) -> FloatArray:
        """Scale every row to unit root mean square, times the learned weight."""
        mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
        scaled: FloatArray = x / np.sqrt(mean_square + np.float32(norm.eps))
        return scaled * norm.weight

    def project(self, x: FloatArray, linear: Linear) -> FloatArray:
        """Apply a projection to every row."""
        y: FloatArray = linear.weight.times(x)
        return y if linear.bias is None else y + linear.bias

    def attention(
        self,
        x: FloatArray,
        block: Attention,
        layers: Sequence[KVLayer],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Norm, q/k/v, rotary, cache write, attend, project, add."""
        normed = self.norm(x, block.norm)
        if block.beside_norm is not None:
            assert beside is not None
            normed = np.concatenate([self.norm(beside, block.beside_norm), normed], axis=-1)
        query = self._heads(normed, block.query, block.query_norm, block)  # (N, heads, D)
        key = self._heads(normed, block.key, block.key_norm, block)  # (N, G, D)
        value = self.project(normed, block.value).reshape(key.shape)  # (N, G, D)
        positions = _positions(rows)
        query, key = _rotate(query, positions, block.rope), _rotate(key, positions, block.rope)

        attended = np.empty((len(x), block.num_heads * block.head_dim), dtype=np.float32)
        for span, layer in zip(rows.spans, layers, strict=True):
            assert isinstance(layer, NumpyKVLayer)
            own = slice(span.first_row, span.first_row + span.num_rows)
            layer.write(span.first_position, key[own], value[own])
            for offset in range(span.num_rows):
                row = span.first_row + offset
                attended[row] = _attend(query[row], layer, span.first_position + offset, block)
        result = self.project(attended, block.output)
        if block.output_norm is not None:
            result = self.norm(result, block.output_norm)
        return x + result

    def gated_mlp(self, x: FloatArray, block: GatedMlp) -> FloatArray:
        """Norm, gate and up, activation, down, add."""
        normed = self.norm(x, block.norm)
        gate = self.project(normed, block.gate)  # (N, I)
        activated = _silu(gate) if block.activation == "silu" else _gelu_tanh(gate)
        result = self.project(activated * self.project(normed, block.up), block.down)
        if block.output_norm is not None:
            result = self.norm(result, block.output_norm)
        return x + result

    def run_layers(
        self,
        x: FloatArray,
        layers: Sequence[LayerBlocks],
        caches: Sequence[Sequence[KVLayer]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[FloatArray, FloatArray | None]:
        """Run the layers one block after the other."""
        tapped: dict[int, FloatArray] = {}
        for index, layer in enumerate(layers):
            if index in tap_layers:
                tapped[index] = x
            x = self.attention(x, layer.attention, [cache[index] for cache in caches], rows)
            x = self.gated_mlp(x, layer.mlp)
        taps = np.concatenate([tapped[i] for i in tap_layers], axis=-1) if tap_layers else None
        return x, taps

    def run_last(
        self,
        x: FloatArray,
        layer: LayerBlocks,
        caches: Sequence[KVLayer],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Run the layer over all rows, and take the last of every span."""
        x = self.gated_mlp(self.attention(x, layer.attention, caches, rows, beside), layer.mlp)
        return x[[span.first_row + span.num_rows - 1 for span in rows.spans]]

    def residual_silu(self, x: FloatArray, linear: Linear) -> FloatArray:
        """x + silu(linear(x))."""
        return x + _silu(self.project(x, linear))

    def _heads(
        self, normed: FloatArray, linear: Linear, norm: Norm | None, block: Attention
    ) -> FloatArray:
        """Project and cut into heads, each with its own norm where the model has one."""
        heads = self.project(normed, linear).reshape(len(normed), -1, block.head_dim)
        return heads if norm is None else self.norm(heads, norm)


def _attend(query: FloatArray, layer: NumpyKVLayer, position: int, block: Attention) -> FloatArray:
    """Attend from one row over everything it may see: (heads, D) → (heads * D,)."""
    first = 0 if block.window is None else max(0, position + 1 - block.window)
    keys = layer.keys[:, first : position + 1]  # (G, L, D)
    values = layer.values[:, first : position + 1]  # (G, L, D)
    grouped = query.reshape(block.num_kv_heads, -1, block.head_dim)  # (G, heads / G, D)
    scores = grouped @ keys.swapaxes(1, 2) * np.float32(block.scale)  # (G, heads / G, L)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    attended: FloatArray = weights @ values  # (G, heads / G, D)
    return attended.reshape(-1)


def _round_to(values: FloatArray, quant: str) -> FloatArray:
    """Round to what a format can hold; rows that are not whole groups stay as they are."""
    kind = _ROUNDINGS.get(quant)
    if kind is None:
        problem = f"There is no weight format {quant!r}."
        raise BackendError(problem, f"Known are {', '.join(_ROUNDINGS)}.")
    if values.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        return values
    rounded: FloatArray = dequantize(quantize(values, kind), kind).reshape(values.shape)
    return rounded


def _positions(rows: Rows) -> IntArray:
    spans = [
        np.arange(span.first_position, span.first_position + span.num_rows) for span in rows.spans
    ]
    return np.concatenate(spans)


def _rotate(heads: FloatArray, positions: IntArray, rope: Rope) -> FloatArray:
    """Turn dimension pairs (i, i + D/2) of every head by its row's position: (N, heads, D)."""
    angles = positions[:, None, None] * rope.frequencies.astype(np.float64)  # (N, 1, D / 2)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    low, high = np.split(heads, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _silu(x: FloatArray) -> FloatArray:
    with np.errstate(
        over="ignore"
    ):  # exp of a very negative gate is inf, and x / inf is the 0 meant
        return np.divide(x, np.float32(1) + np.exp(-x), dtype=np.float32)


def _gelu_tanh(x: FloatArray) -> FloatArray:
    inner: FloatArray = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    activated = np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))
    return activated.astype(np.float32, copy=False)  # it is; the stubs do not know


def _keeps_rows_apart(values: FloatArray) -> bool:
    """Check that a row's product does not depend on its place in the tile or on its mates.

    BLAS chooses its kernels by shape, not by value, so one look at random rows settles a shape.
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


@register_backend("numpy")
def make_ops(threads: int | None = None) -> NumpyOps:
    """Return the numpy backend; its number of threads is BLAS's own business."""
    return NumpyOps()
