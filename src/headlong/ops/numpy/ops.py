"""The numpy backend: float32, readable, the oracle that faster backends are compared with.

Rows do not depend on each other (exactness, design note 0001), for two reasons. Projections always
run in tiles of `TILE` rows, padded with zeros, so that BLAS takes the same path for a row whatever
is beside it; whether this BLAS keeps rows apart is checked for every matrix shape when it is
packed, and where it does not, rows go through it one by one. Attention is computed row by row, so
its shapes depend on the position alone.
"""

import math
from collections.abc import Sequence

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops.backends import register_backend
from headlong.ops.block_by_block import BlockByBlock
from headlong.ops.blocks import (
    Attending,
    Attention,
    Channel,
    Experts,
    LatentAttention,
    Linear,
    Mamba2,
    Mixer,
    Norm,
    PerLayerInput,
    SharedAttention,
)
from headlong.ops.host_arrays import HostArrays
from headlong.ops.host_ops import HostOps
from headlong.ops.layer_state import LayerState
from headlong.ops.numpy.delta import delta_net_result
from headlong.ops.numpy.experts import experts_result, mlp_result, per_layer_result
from headlong.ops.numpy.host import NumpyHost
from headlong.ops.numpy.latent import mix_latent
from headlong.ops.numpy.mamba import mamba_result
from headlong.ops.numpy.maths import sigmoid, silu
from headlong.ops.numpy.recurrent import make_stepped_state
from headlong.ops.numpy.rotary import rotate
from headlong.ops.numpy.weights import NumpyKVLayer, NumpyMatrix, round_to
from headlong.ops.op_set import Rows
from headlong.weights.tensors import StoredTensor


class NumpyOps(HostArrays, BlockByBlock):
    """The op set in numpy."""

    name = "numpy"
    host: HostOps = NumpyHost()

    def __init__(self, note: str = "") -> None:
        self.note = note

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> NumpyMatrix:
        """Unpack a stored tensor to float32, rounded to the precision of `quant` if given."""
        values = tensor.to_float32()
        return NumpyMatrix(values if quant is None else round_to(values, quant))

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of a tensor unpacked to float32, whatever it is rounded to."""
        return math.prod(tensor.shape) * np.dtype(np.float32).itemsize

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format everything is unpacked to."""
        return "f32"

    def finish_loading(self) -> None:
        """Do nothing: numpy's arrays are as large as they must be."""

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return an empty float32 state."""
        if isinstance(mixer, Attending):
            return NumpyKVLayer(mixer.num_kv_heads, mixer.head_dim, mixer.value_dim)
        if isinstance(mixer, LatentAttention):
            return NumpyKVLayer(1, mixer.rank + mixer.rotary_dim, mixer.rank)
        return make_stepped_state(mixer)

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

    def mix(
        self,
        x: FloatArray,
        block: Mixer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Run one mixer: norm, projections, states, add."""
        if isinstance(block, Attention):
            return self._attention(x, block, states, rows, beside)
        if isinstance(block, LatentAttention):
            return mix_latent(self, x, block, states, rows)
        if isinstance(block, SharedAttention):
            query = self._queries(self.norm(x, block.norm), block, rows)
            return self._add(x, _attend_all(query, block, states, rows), block)
        if isinstance(block, Mamba2):
            return x + mamba_result(self, x, block, states, rows)
        return x + delta_net_result(self, x, block, states, rows)

    def transform(
        self, x: FloatArray, block: Channel, beside: FloatArray | None = None
    ) -> FloatArray:
        """Run one channel part."""
        if isinstance(block, PerLayerInput):
            assert beside is not None
            return x + per_layer_result(self, x, block, beside)
        if isinstance(block, Experts):
            return x + experts_result(self, x, block)
        return x + mlp_result(self, x, block)

    def _attention(
        self,
        x: FloatArray,
        block: Attention,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Norm, q/k/v, rotary, cache write, attend, project, add."""
        normed = self.norm(x, block.norm)
        residual = normed if block.adds_to_normed else x
        if block.beside_norm is not None:
            assert beside is not None
            normed = np.concatenate([self.norm(beside, block.beside_norm), normed], axis=-1)
        key = self._heads(normed, block.key, block.key_norm, block)  # (N, G, D)
        key = rotate(key, rows.positions, block.rope)
        value = self.project(normed, block.value).reshape(*key.shape[:2], -1)  # (N, G, D of values)
        if block.value_norm is not None:
            value = self.norm(value, block.value_norm)
        for span, layer in zip(rows.spans, states, strict=True):
            assert isinstance(layer, NumpyKVLayer)
            own = slice(span.first_row, span.first_row + span.num_rows)
            layer.write(span.first_position, key[own], value[own])
        attended = _attend_all(self._queries(normed, block, rows), block, states, rows)
        if block.gate is not None:
            attended *= sigmoid(self.project(normed, block.gate))
        return self._add(residual, attended, block)

    def _queries(self, normed: FloatArray, block: Attending, rows: Rows) -> FloatArray:
        """Return the rotated queries of all rows: (N, heads, D)."""
        query = self._heads(normed, block.query, block.query_norm, block)
        ahead = block.ahead if isinstance(block, SharedAttention) else 0
        return rotate(query, rows.positions + ahead, block.rope)

    def _add(self, x: FloatArray, attended: FloatArray, block: Attending) -> FloatArray:
        """Project what was attended to and add it."""
        result = self.project(attended, block.output)
        if block.output_norm is not None:
            result = self.norm(result, block.output_norm)
        return x + result

    def residual_silu(self, x: FloatArray, linear: Linear) -> FloatArray:
        """x + silu(linear(x))."""
        return x + silu(self.project(x, linear))

    def _heads(
        self, normed: FloatArray, linear: Linear, norm: Norm | None, block: Attending
    ) -> FloatArray:
        """Project and cut into heads, each with its own norm where the model has one."""
        heads = self.project(normed, linear).reshape(len(normed), -1, block.head_dim)
        return heads if norm is None else self.norm(heads, norm)


def _attend_all(
    query: FloatArray,
    block: Attending,
    states: Sequence[LayerState | None],
    rows: Rows,
) -> FloatArray:
    """Attend row by row: (N, heads, D) → (N, heads * D of values)."""
    attended = np.empty((len(query), block.num_heads * block.value_dim), dtype=np.float32)
    for span, layer in zip(rows.spans, states, strict=True):
        assert isinstance(layer, NumpyKVLayer)
        for offset in range(span.num_rows):
            row = span.first_row + offset
            attended[row] = _attend(query[row], layer, span.first_position + offset, block)
    return attended


def _attend(query: FloatArray, layer: NumpyKVLayer, position: int, block: Attending) -> FloatArray:
    """Attend from one row over everything it may see: (heads, D) → (heads * D of values,)."""
    first = 0 if block.window is None else max(0, position + 1 - block.window)
    keys = layer.keys[:, first : position + 1]  # (G, L, D)
    values = layer.values[:, first : position + 1]  # (G, L, D)
    grouped = query.reshape(block.num_kv_heads, -1, block.head_dim)  # (G, heads / G, D)
    scores = grouped @ keys.swapaxes(1, 2) * np.float32(block.scale)  # (G, heads / G, L)
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    if block.sinks is not None:
        with np.errstate(over="ignore"):  # a sink that high leaves nothing for the values
            total = total + np.exp(block.sinks.reshape(*total.shape) - largest)
    weights /= total
    attended: FloatArray = weights @ values  # (G, heads / G, D of values)
    return attended.reshape(-1) * np.float32(block.value_scale)


@register_backend("numpy")
def make_ops(threads: int | None = None) -> NumpyOps:
    """Return the numpy backend; its number of threads is BLAS's own business."""
    return NumpyOps()
