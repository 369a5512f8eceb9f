"""Attention in MLX: every row over its own stretch of the cache, rows of a stretch together.

In:  queries of all rows, their caches, what the pass says about them. Out: what they attended to.
A row is a batch of its own in both products, so how many are beside it changes no shape of its own.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from headlong.ops.blocks import Attending
from headlong.ops.layer_state import LayerState
from headlong.ops.mlx_state import MlxKVLayer, PassPlan


def attend(
    query: Any, states: Sequence[LayerState | None], plan: PassPlan, block: Attending, sinks: Any
) -> Any:
    """Attend from all rows of a pass, (N, heads, D), each over its own cache: (N, heads * D)."""
    parts: list[Any] = []
    for layer, stretches in zip(states, plan.stretches(block.window), strict=True):
        assert isinstance(layer, MlxKVLayer)
        for one in stretches:
            own = query[one.first_row : one.stop_row]
            grouped = own.reshape(len(own), block.num_kv_heads, -1, block.head_dim)
            keys = layer.keys[:, one.first : one.stop]
            values = layer.values[:, one.first : one.stop]
            read = read_values(grouped, keys, values, one.mask, block.scale, sinks)
            parts.append(read.reshape(len(own), -1))
    attended = parts[0] if len(parts) == 1 else mx.concatenate(parts)
    return attended if block.value_scale == 1.0 else attended * block.value_scale


def read_values(
    query: Any, keys: Any, values: Any, mask: Any, scale: float, sinks: Any = None
) -> Any:
    """Mix values by how queries fit keys: (n, G, heads / G, D) over (G, L, D)."""
    scores = (query @ keys.swapaxes(1, 2)[None]).astype(mx.float32) * scale + mask
    if sinks is None:
        shares = mx.softmax(scores, axis=-1)
    else:
        # Sinks take their shares of each head's softmax and bring no value.
        joined = mx.concatenate([scores, mx.broadcast_to(sinks, (*scores.shape[:-1], 1))], -1)
        shares = mx.softmax(joined, axis=-1)[..., :-1]
    return shares.astype(values.dtype) @ values[None]
