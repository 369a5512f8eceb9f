"""Attention in MLX: every row over its own stretch of the cache, rows of a stretch together.

In:  queries of all rows, their caches, what the pass says about them. Out: what they attended to.
A row is a batch of its own in both products, so how many are beside it changes no shape of its own.
MLX may still choose a kernel by the size of the whole batch, and makes one matrix of all rows where
they share a single head of keys. So it is measured whether rows keep their bits; where they do not,
they are read one by one.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from headlong.ops.blocks import Attending
from headlong.ops.layer_state import LayerState
from headlong.ops.mlx.host import read
from headlong.ops.mlx.state import STEP, MlxKVLayer, PassPlan


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
            mixed = read_values(grouped, keys, values, one.mask, block.scale, sinks)
            parts.append(mixed.reshape(len(own), -1))
    attended = parts[0] if len(parts) == 1 else mx.concatenate(parts)
    return attended if block.value_scale == 1.0 else attended * block.value_scale


def read_values(
    query: Any, keys: Any, values: Any, mask: Any, scale: float, sinks: Any = None
) -> Any:
    """Mix values by how queries fit keys: (n, G, heads / G, D) over (G, L, D)."""
    if _is_batch_invariant(query.shape[1:], values.shape[-1], values.dtype):
        return _mix(query, keys, values, mask, scale, sinks)
    alone = [slice(i, i + 1) for i in range(len(query))]
    return mx.concatenate([_mix(query[i], keys, values, mask[i], scale, sinks) for i in alone])


_LENGTHS = (STEP, 8 * STEP, 32 * STEP)
"""Stretches of the cache at which rows are compared."""


@cache
def _is_batch_invariant(heads: tuple[int, int, int], value_dim: int, dtype: Any) -> bool:
    """Tell whether rows get the same bits alone and together; heads are (G, heads / G, D)."""
    num_kv_heads, _, key_dim = heads
    for length in _LENGTHS:
        sizes = ((STEP, *heads), (num_kv_heads, length, key_dim), (num_kv_heads, length, value_dim))
        query, keys, values = (
            mx.random.normal(size, key=mx.random.key(place)).astype(dtype)
            for place, size in enumerate(sizes)
        )
        mask, scale = mx.zeros((STEP, 1, 1, length)), key_dim**-0.5
        first, *together = read(
            mx.concatenate(
                [_mix(query[i : i + 1], keys, values, mask[:1], scale) for i in range(8)]
            ),
            *(_mix(query[:n], keys, values, mask[:n], scale) for n in (*range(2, 9), STEP)),
        )
        if not all(np.array_equal(rows[:8], first[: len(rows)]) for rows in together):
            return False
    return True


def _mix(query: Any, keys: Any, values: Any, mask: Any, scale: float, sinks: Any = None) -> Any:
    scores = (query @ keys.swapaxes(1, 2)[None]).astype(mx.float32) * scale + mask
    if sinks is None:
        shares = mx.softmax(scores, axis=-1)
    else:
        # Sinks take their shares of each head's softmax and bring no value.
        joined = mx.concatenate([scores, mx.broadcast_to(sinks, (*scores.shape[:-1], 1))], -1)
        shares = mx.softmax(joined, axis=-1)[..., :-1]
    return shares.astype(values.dtype) @ values[None]
