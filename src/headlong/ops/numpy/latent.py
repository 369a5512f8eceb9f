"""Latent attention in numpy: heads ask and read in the space of the latent vectors.

Every row by itself: the products with the heads' own matrices, and attention, have shapes that
depend on the block and on the row's position alone.
"""

from collections.abc import Sequence

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.blocks import LatentAttention
from headlong.ops.layer_state import LayerState
from headlong.ops.numpy.rotary import rotate
from headlong.ops.numpy.weights import NumpyKVLayer
from headlong.ops.op_set import Ops, Rows


def mix_latent(
    ops: Ops,
    x: FloatArray,
    block: LatentAttention,
    states: Sequence[LayerState | None],
    rows: Rows,
) -> FloatArray:
    """Norm, queries and latent vectors, cache write, attend, values of the heads, project, add."""
    normed: FloatArray = ops.norm(x, block.norm)
    queries = _queries(ops, normed, block, rows)  # (N, heads, rank + R)
    latent, turning = np.split(ops.project(normed, block.latent), [block.rank], axis=-1)
    latent = ops.norm(latent, block.latent_norm)
    turned = rotate(turning[:, None], rows.positions, block.rope)[:, 0]
    keys = np.concatenate([latent, turned], axis=-1)  # (N, rank + R)

    value_up = _by_head(block.value_up.weight.values, block)  # (heads, value_dim, rank)
    attended = np.empty((len(x), block.num_heads * block.value_dim), dtype=np.float32)
    for span, layer in zip(rows.spans, states, strict=True):
        assert isinstance(layer, NumpyKVLayer)
        own = slice(span.first_row, span.first_row + span.num_rows)
        layer.write(span.first_position, keys[own, None], latent[own, None])
        for offset in range(span.num_rows):
            row = span.first_row + offset
            read = _read(queries[row], layer, span.first_position + offset, block.scale)
            attended[row] = (value_up @ read[..., None]).reshape(-1)
    result: FloatArray = ops.project(attended, block.output)
    return x + result


def _queries(ops: Ops, normed: FloatArray, block: LatentAttention, rows: Rows) -> FloatArray:
    if block.query_down is not None:
        assert block.query_norm is not None
        normed = ops.norm(ops.project(normed, block.query_down), block.query_norm)
    heads = ops.project(normed, block.query).reshape(len(normed), block.num_heads, -1)
    plain, turning = np.split(heads, [block.plain_dim], axis=-1)
    key_up = _by_head(block.key_up.weight.values, block)  # (heads, rank, plain_dim)
    asked = np.stack([(key_up @ row[..., None])[..., 0] for row in plain])
    turned = rotate(turning, rows.positions, block.rope)
    return np.concatenate([asked, turned], axis=-1)


def _read(query: FloatArray, layer: NumpyKVLayer, position: int, scale: float) -> FloatArray:
    """Attend from one row over all latent vectors up to it: (heads, rank + R) → (heads, rank)."""
    keys, values = layer.keys[0, : position + 1], layer.values[0, : position + 1]
    scores = query @ keys.T * np.float32(scale)  # (heads, L)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    read: FloatArray = weights @ values
    return read


def _by_head(matrix: FloatArray, block: LatentAttention) -> FloatArray:
    return matrix.reshape(block.num_heads, -1, matrix.shape[1])
