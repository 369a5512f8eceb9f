"""Recurrent mixers in MLX: the gated delta rule and Mamba-2, one step per row, in float32.

In:  rows, and the states of their sequences. Out: what the mixer adds to the rows.
All shapes of a step are those of one row, so how rows are cut into passes changes no bit. Steps of
a prompt run one after the other, which is slow where a prompt is long (`MlxOps.note`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from headlong.ops.blocks import GatedDeltaNet, Mamba2
from headlong.ops.layer_state import LayerState
from headlong.ops.mlx.maths import rms_norm, silu, softplus
from headlong.ops.numpy.delta import UNIT_EPS
from headlong.ops.op_set import Rows
from headlong.ops.recurrent_state import Recurrence, RecurrentRows, Step, SteppedState

if TYPE_CHECKING:
    from headlong.ops.mlx.ops import MlxOps

_Vector = Callable[[str], Any]
"""A block's own numbers as MLX arrays, by the name of their field."""


def make_stepped_state(block: GatedDeltaNet | Mamba2) -> SteppedState:
    """Return the state of a sequence without rows."""
    width, num_channels = block.convolution.shape
    window = mx.zeros((width - 1, num_channels))
    return SteppedState(Recurrence(mx.zeros(block.memory_shape), window))


def delta_net_result(
    ops: "MlxOps",
    x: Any,
    block: GatedDeltaNet,
    states: Sequence[LayerState | None],
    rows: Rows,
) -> Any:
    """Return what a gated delta net adds to x: (N, H) → (N, H)."""
    vector = partial(ops.vector, block)
    normed = ops.norm(x, block.norm)
    rate = softplus(_wide(ops.project(normed, block.decay)) + vector("decay_bias"))
    projected = RecurrentRows(
        _wide(ops.project(normed, block.mixed)),
        mx.sigmoid(_wide(ops.project(normed, block.update))),
        mx.exp(-(vector("decay_rate") * rate)),
    )
    read = _run(projected, states, rows, partial(_take_delta_row, block=block, vector=vector))
    heads = ops.norm(read.reshape(len(x), -1, block.value_dim), block.head_norm)
    gated = heads.reshape(len(x), -1) * silu(_wide(ops.project(normed, block.gate)))
    if block.tiles_output:
        by_key_head = gated.reshape(len(x), block.num_key_heads, -1, block.value_dim)
        gated = by_key_head.swapaxes(1, 2).reshape(len(x), -1)
    return ops.project(gated.astype(x.dtype), block.output)


def mamba_result(
    ops: "MlxOps", x: Any, block: Mamba2, states: Sequence[LayerState | None], rows: Rows
) -> Any:
    """Return what a Mamba-2 mixer adds to x: (N, H) → (N, H)."""
    vector = partial(ops.vector, block)
    normed = ops.norm(x, block.norm)
    steps = softplus(_wide(ops.project(normed, block.step)) + vector("step_bias"))
    steps = mx.clip(steps, *block.step_limits)
    projected = RecurrentRows(
        _wide(ops.project(normed, block.mixed)), steps, mx.exp(-vector("decay_rate") * steps)
    )
    read = _run(projected, states, rows, partial(_take_mamba_row, block=block, vector=vector))
    gated = read * silu(_wide(ops.project(normed, block.gate)))
    groups = gated.reshape(len(x), block.num_groups, -1)
    weight = ops.vector(block.group_norm, "weight").reshape(block.num_groups, -1)
    scaled = rms_norm(groups, None, block.group_norm.eps) * weight
    return ops.project(scaled.reshape(len(x), -1).astype(x.dtype), block.output)


def _run(
    projected: RecurrentRows, states: Sequence[LayerState | None], rows: Rows, step: Step
) -> Any:
    """Take the rows of every span in, one after the other; return what each reads."""
    read: list[Any] = []
    for span, state in zip(rows.spans, states, strict=True):
        assert isinstance(state, SteppedState)
        own = slice(span.first_row, span.first_row + span.num_rows)
        read += state.run(RecurrentRows(*(values[own] for values in projected)), step)
    return mx.stack(read)


def _take_delta_row(
    state: Recurrence, row: RecurrentRows, block: GatedDeltaNet, vector: _Vector
) -> tuple[Recurrence, Any]:
    """Take one row in: decay, correct what its key recalls, read with its query."""
    inputs = mx.concatenate([state.window, row.mixed[None]])  # (width, channels)
    mixed = _convolve(inputs, vector("convolution"))
    key_size = block.num_key_heads * block.key_dim
    query, key, value = mx.split(mixed, [key_size, 2 * key_size])
    num_each = block.num_value_heads // block.num_key_heads
    query = _unit(query.reshape(-1, block.key_dim)) * block.key_dim**-0.5
    query, key = (
        mx.repeat(heads, num_each, axis=0)
        for heads in (query, _unit(key.reshape(-1, block.key_dim)))
    )
    memory = state.memory * row.decay[:, None, None]
    recalled = (memory * key[:, :, None]).sum(1)  # (heads, value_dim)
    correction = row.strength[:, None] * (value.reshape(-1, block.value_dim) - recalled)
    memory = memory + key[:, :, None] * correction[:, None]
    read = (memory * query[:, :, None]).sum(1)  # (heads, value_dim)
    return Recurrence(memory, inputs[1:]), read.reshape(-1)


def _take_mamba_row(
    state: Recurrence, row: RecurrentRows, block: Mamba2, vector: _Vector
) -> tuple[Recurrence, Any]:
    """Take one row in: decay, add what it brings, read, and let its own value through."""
    inputs = mx.concatenate([state.window, row.mixed[None]])  # (width, channels)
    mixed = _convolve(inputs, vector("convolution"), vector("convolution_bias"))
    key_size = block.num_groups * block.state_size
    query, key, value = mx.split(mixed, [key_size, 2 * key_size])
    num_each = block.num_heads // block.num_groups
    query, key = (
        mx.repeat(heads.reshape(block.num_groups, -1), num_each, axis=0) for heads in (query, key)
    )
    value = value.reshape(block.num_heads, -1)  # (heads, head_dim)
    brought = row.strength[:, None] * value
    memory = state.memory * row.decay[:, None, None] + key[:, :, None] * brought[:, None]
    read = (memory * query[:, :, None]).sum(1) + vector("skip")[:, None] * value
    return Recurrence(memory, inputs[1:]), read.reshape(-1)


def _convolve(inputs: Any, factors: Any, bias: Any = None) -> Any:
    """Mix every channel with its own past, then silu: (width, channels) → (channels,)."""
    mixed = inputs[0] * factors[0]
    for place in range(1, len(factors)):
        mixed = mixed + inputs[place] * factors[place]
    return silu(mixed if bias is None else mixed + bias)


def _unit(heads: Any) -> Any:
    return heads / mx.sqrt(mx.square(heads).sum(-1, keepdims=True) + float(UNIT_EPS))


def _wide(x: Any) -> Any:
    return x.astype(mx.float32)
