"""What recurrent mixers share in torch: states, the convolution of one row, rows in order."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import GatedDeltaNet, Mamba2
from headlong.ops.layer_state import LayerState
from headlong.ops.op_set import Rows
from headlong.ops.recurrent_state import Recurrence, RecurrentRows, Step, SteppedState

TakeIn: TypeAlias = Callable[[RecurrentRows, Step], Tensor]
"""Takes rows in with a mixer's step, each into its sequence's state; returns what each reads."""


def make_stepped_state(block: GatedDeltaNet | Mamba2, device: torch.device) -> SteppedState:
    """Return the state of a sequence without rows, in float32."""
    width, num_channels = block.convolution.shape
    window = torch.zeros(width - 1, num_channels, device=device)
    return SteppedState(Recurrence(torch.zeros(block.memory_shape, device=device), window))


def convolve(inputs: Tensor, factors: Tensor, bias: Tensor | None = None) -> Tensor:
    """Mix every channel with its own past, then silu: (width, …, channels) → (…, channels)."""
    mixed = inputs[0] * factors[0]
    for row, factor in zip(inputs[1:], factors[1:], strict=True):
        mixed = mixed + row * factor
    return F.silu(mixed if bias is None else mixed + bias)


def run_recurrence(
    projected: RecurrentRows, states: Sequence[LayerState | None], rows: Rows, step: Step
) -> Tensor:
    """Take the rows of every span in, one after the other; return what each reads."""
    read: list[Tensor] = []
    for span, state in zip(rows.spans, states, strict=True):
        assert isinstance(state, SteppedState)
        own = slice(span.first_row, span.first_row + span.num_rows)
        read += state.run(RecurrentRows(*(values[own] for values in projected)), step)
    return torch.stack(read)
