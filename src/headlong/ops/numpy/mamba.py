"""Mamba-2 in numpy: one step of the state space per row, in order. The oracle of the kernels.

In:  rows, and the states of their sequences. Out: what the mixer adds to the rows.
Prompt, verify and decode rows take the very same step, and all shapes are those of one row, so how
rows are cut into passes changes no bit.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.blocks import Mamba2, Norm
from headlong.ops.layer_state import LayerState
from headlong.ops.numpy.maths import silu
from headlong.ops.numpy.recurrent import convolve, run_recurrence
from headlong.ops.op_set import Ops, Rows
from headlong.ops.recurrent_state import Recurrence, RecurrentRows


def mamba_result(
    ops: Ops, x: FloatArray, block: Mamba2, states: Sequence[LayerState | None], rows: Rows
) -> FloatArray:
    """Return what a Mamba-2 mixer adds to x: (N, H) → (N, H)."""
    normed = ops.norm(x, block.norm)
    steps = np.logaddexp(np.float32(0), ops.project(normed, block.step) + block.step_bias)
    steps = np.clip(steps, np.float32(block.step_limits[0]), np.float32(block.step_limits[1]))
    projected = RecurrentRows(
        ops.project(normed, block.mixed), steps, np.exp(-block.decay_rate * steps)
    )
    read = run_recurrence(projected, states, rows, partial(take_row, block=block))
    gated = read * silu(ops.project(normed, block.gate))
    groups = gated.reshape(len(x), block.num_groups, -1)
    weight = block.group_norm.weight.reshape(block.num_groups, -1)
    scaled = ops.norm(groups, Norm(weight, block.group_norm.eps))
    result: FloatArray = ops.project(scaled.reshape(gated.shape), block.output)
    return result


def take_row(state: Recurrence, row: RecurrentRows, block: Mamba2) -> tuple[Recurrence, FloatArray]:
    """Take one row in: decay, add what it brings, read, and let its own value through."""
    inputs = np.concatenate([state.window, row.mixed[None]])  # (width, channels)
    mixed = convolve(inputs, block.convolution, block.convolution_bias)
    key_size = block.num_groups * block.state_size
    query, key, value = np.split(mixed, [key_size, 2 * key_size])
    num_each = block.num_heads // block.num_groups
    query = np.repeat(query.reshape(block.num_groups, -1), num_each, axis=0)  # (heads, state_size)
    key = np.repeat(key.reshape(block.num_groups, -1), num_each, axis=0)
    value = value.reshape(block.num_heads, -1)  # (heads, head_dim)
    brought = row.strength[:, None] * value
    memory = state.memory * row.decay[:, None, None] + key[:, :, None] * brought[:, None]
    read = np.sum(memory * query[:, :, None], axis=1) + block.skip[:, None] * value
    return Recurrence(memory, inputs[1:]), read.reshape(-1)
