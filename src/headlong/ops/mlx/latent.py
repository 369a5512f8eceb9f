"""Latent attention in MLX: heads ask and read in the space of the latent vectors.

In:  rows, and the caches of their sequences. Out: what the mixer adds to the rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from headlong.ops.blocks import LatentAttention, Linear
from headlong.ops.layer_state import LayerState
from headlong.ops.mlx.attention import read_values
from headlong.ops.mlx.maths import rotate
from headlong.ops.mlx.state import MlxKVLayer, PassPlan

if TYPE_CHECKING:
    from headlong.ops.mlx.ops import MlxOps


def latent_result(
    ops: "MlxOps",
    x: Any,
    block: LatentAttention,
    states: Sequence[LayerState | None],
    plan: PassPlan,
) -> Any:
    """Norm, queries and latent vectors, cache write, attend, values of the heads, project."""
    normed = ops.norm(x, block.norm)
    angles = plan.angles(block.rope)
    queries = _queries(ops, normed, block, angles)  # (N, heads, rank + R)
    latent, turning = mx.split(ops.project(normed, block.latent), [block.rank], axis=-1)
    latent = ops.norm(latent, block.latent_norm)[:, None]
    keys = mx.concatenate([latent, rotate(turning[:, None], *angles)], -1)  # (N, 1, rank + R)
    parts: list[Any] = []
    spans = zip(plan.rows.spans, states, plan.stretches(None), strict=True)
    for span, layer, stretches in spans:
        assert isinstance(layer, MlxKVLayer)
        own = slice(span.first_row, span.first_row + span.num_rows)
        layer.write(span.first_position, keys[own], latent[own])
        for one in stretches:
            asked = queries[one.first_row : one.stop_row, None]  # all heads read one vector
            entries = layer.keys[:, : one.stop], layer.values[:, : one.stop]
            parts.append(read_values(asked, *entries, one.mask, block.scale)[:, 0])
    read = parts[0] if len(parts) == 1 else mx.concatenate(parts)  # (N, heads, rank)
    values = _by_head(ops, read, block.value_up, block)
    return ops.project(values.reshape(len(x), -1), block.output)


def _queries(ops: "MlxOps", normed: Any, block: LatentAttention, angles: tuple[Any, Any]) -> Any:
    if block.query_down is not None:
        assert block.query_norm is not None
        normed = ops.norm(ops.project(normed, block.query_down), block.query_norm)
    heads = ops.project(normed, block.query).reshape(len(normed), block.num_heads, -1)
    plain, turning = mx.split(heads, [block.plain_dim], axis=-1)
    asked = _by_head(ops, plain, block.key_up, block)
    return mx.concatenate([asked, rotate(turning, *angles)], -1)


def _by_head(ops: "MlxOps", x: Any, linear: Linear, block: LatentAttention) -> Any:
    """Multiply every head of every row with its own matrix: (N, heads, a) → (N, heads, b)."""
    matrices = ops.values_of(linear)  # (heads * b, a)
    by_head = matrices.reshape(block.num_heads, -1, matrices.shape[1]).swapaxes(1, 2)
    return (x[:, :, None] @ by_head[None])[:, :, 0]
