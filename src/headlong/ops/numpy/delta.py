"""The gated delta rule in numpy: one recurrence step per row, in order. The oracle of the kernels.

In:  rows, and the states of their sequences. Out: what the mixer adds to the rows.
Prompt, verify and decode rows take the very same step, and all shapes are those of one row, so how
rows are cut into passes changes no bit.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.blocks import GatedDeltaNet
from headlong.ops.layer_state import LayerState
from headlong.ops.numpy.maths import sigmoid, silu
from headlong.ops.numpy.recurrent import convolve, run_recurrence
from headlong.ops.op_set import Ops, Rows
from headlong.ops.recurrent_state import Recurrence, RecurrentRows

UNIT_EPS = np.float32(1e-6)
"""Added to the squared length of queries and keys before they are divided by it."""


def delta_net_result(
    ops: Ops, x: FloatArray, block: GatedDeltaNet, states: Sequence[LayerState | None], rows: Rows
) -> FloatArray:
    """Return what a gated delta net adds to x: (N, H) → (N, H)."""
    normed = ops.norm(x, block.norm)
    rate = np.logaddexp(np.float32(0), ops.project(normed, block.decay) + block.decay_bias)
    projected = RecurrentRows(
        ops.project(normed, block.mixed),
        sigmoid(ops.project(normed, block.update)),
        np.exp(-(block.decay_rate * rate)),
    )
    read = run_recurrence(projected, states, rows, partial(take_row, block=block))
    heads = ops.norm(read.reshape(len(x), -1, block.value_dim), block.head_norm)
    gated = heads.reshape(read.shape) * silu(ops.project(normed, block.gate))
    if block.tiles_output:
        by_key_head = gated.reshape(len(x), block.num_key_heads, -1, block.value_dim)
        gated = by_key_head.swapaxes(1, 2).reshape(read.shape)
    result: FloatArray = ops.project(gated, block.output)
    return result


def take_row(
    state: Recurrence, row: RecurrentRows, block: GatedDeltaNet
) -> tuple[Recurrence, FloatArray]:
    """Take one row in: decay, correct what its key recalls, read with its query."""
    inputs = np.concatenate([state.window, row.mixed[None]])  # (width, channels)
    query, key, value = _heads(convolve(inputs, block.convolution), block)
    memory = state.memory * row.decay[:, None, None]
    recalled = np.sum(memory * key[:, :, None], axis=1)  # (heads, value_dim)
    correction = row.strength[:, None] * (value - recalled)
    memory = memory + key[:, :, None] * correction[:, None]
    read = np.sum(memory * query[:, :, None], axis=1)  # (heads, value_dim)
    return Recurrence(memory, inputs[1:]), read.reshape(-1)


def _heads(mixed: FloatArray, block: GatedDeltaNet) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Cut into heads; queries and keys of unit length, repeated for the value heads they serve."""
    key_size = block.num_key_heads * block.key_dim
    query, key, value = np.split(mixed, [key_size, 2 * key_size])
    num_each = block.num_value_heads // block.num_key_heads
    query = _unit(query.reshape(-1, block.key_dim)) * np.float32(block.key_dim**-0.5)
    key = _unit(key.reshape(-1, block.key_dim))
    return (
        np.repeat(query, num_each, axis=0),
        np.repeat(key, num_each, axis=0),
        value.reshape(-1, block.value_dim),
    )


def _unit(heads: FloatArray) -> FloatArray:
    length = np.sqrt(np.sum(np.square(heads), axis=-1, keepdims=True) + UNIT_EPS)
    unit: FloatArray = heads / length
    return unit
