"""What recurrent mixers share in numpy: states, the convolution of one row, rows in order."""

from collections.abc import Sequence

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.blocks import GatedDeltaNet, Mamba2
from headlong.ops.layer_state import LayerState
from headlong.ops.numpy.maths import silu
from headlong.ops.op_set import Rows
from headlong.ops.recurrent_state import Recurrence, RecurrentRows, Step, SteppedState


def make_stepped_state(block: GatedDeltaNet | Mamba2) -> SteppedState:
    """Return the state of a sequence without rows."""
    width, num_channels = block.convolution.shape
    window = np.zeros((width - 1, num_channels), dtype=np.float32)
    return SteppedState(Recurrence(np.zeros(block.memory_shape, dtype=np.float32), window))


def convolve(inputs: FloatArray, factors: FloatArray, bias: FloatArray | None = None) -> FloatArray:
    """Mix every channel with its own past, then silu: (width, channels) → (channels,)."""
    mixed: FloatArray = inputs[0] * factors[0]
    for row, factor in zip(inputs[1:], factors[1:], strict=True):
        mixed = mixed + row * factor
    if bias is not None:
        mixed = mixed + bias
    return silu(mixed)


def run_recurrence(
    projected: RecurrentRows, states: Sequence[LayerState | None], rows: Rows, step: Step
) -> FloatArray:
    """Take the rows of every span in, one after the other; return what each reads."""
    read: list[FloatArray] = []
    for span, state in zip(rows.spans, states, strict=True):
        assert isinstance(state, SteppedState)
        own = slice(span.first_row, span.first_row + span.num_rows)
        read += state.run(RecurrentRows(*(values[own] for values in projected)), step)
    return np.stack(read)
