"""The gated delta rule in numpy: one recurrence step per row, in order. The oracle of the kernels.

In:  projected rows of one sequence and its state. Out: what every row reads of the state.
Prompt, verify and decode rows take the very same step, and all shapes are those of one row, so how
rows are cut into passes changes no bit.
"""

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.blocks import GatedDeltaNet
from headlong.ops.delta_state import DeltaRows, DeltaState, Recurrence

UNIT_EPS = np.float32(1e-6)
"""Added to the squared length of queries and keys before they are divided by it."""


def make_delta_state(block: GatedDeltaNet) -> DeltaState:
    """Return the state of a sequence without rows."""
    width, num_channels = block.convolution.shape
    shape = (block.num_value_heads, block.key_dim, block.value_dim)
    window = np.zeros((width - 1, num_channels), dtype=np.float32)
    return DeltaState(Recurrence(np.zeros(shape, dtype=np.float32), window))


def take_row(
    state: Recurrence, row: DeltaRows, block: GatedDeltaNet
) -> tuple[Recurrence, FloatArray]:
    """Take one row in: decay, correct what its key recalls, read with its query."""
    inputs = np.concatenate([state.window, row.mixed[None]])  # (width, channels)
    query, key, value = _heads(_convolve(inputs, block.convolution), block)
    memory = state.memory * row.decay[:, None, None]
    recalled = np.sum(memory * key[:, :, None], axis=1)  # (heads, value_dim)
    correction = row.beta[:, None] * (value - recalled)
    memory = memory + key[:, :, None] * correction[:, None]
    read = np.sum(memory * query[:, :, None], axis=1)  # (heads, value_dim)
    return Recurrence(memory, inputs[1:]), read.reshape(-1)


def _convolve(inputs: FloatArray, factors: FloatArray) -> FloatArray:
    """Mix every channel with its own past, then silu: (width, channels) → (channels,)."""
    mixed: FloatArray = inputs[0] * factors[0]
    for row, factor in zip(inputs[1:], factors[1:], strict=True):
        mixed = mixed + row * factor
    with np.errstate(over="ignore"):
        return np.divide(mixed, np.float32(1) + np.exp(-mixed), dtype=np.float32)


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
