"""The gated delta rule in torch: one recurrence step per row, in order, in float32.

In:  projected rows of one sequence and its state. Out: what every row reads of the state.
All shapes are those of one row, so how rows are cut into passes changes no bit.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import GatedDeltaNet
from headlong.ops.delta_state import DeltaRows, DeltaState, Recurrence

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys before they are divided by it."""


def make_delta_state(block: GatedDeltaNet, device: torch.device) -> DeltaState:
    """Return the state of a sequence without rows."""
    width, num_channels = block.convolution.shape
    shape = (block.num_value_heads, block.key_dim, block.value_dim)
    window = torch.zeros(width - 1, num_channels, device=device)
    return DeltaState(Recurrence(torch.zeros(shape, device=device), window))


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """A block's own numbers on the device, and the step they define."""

    block: GatedDeltaNet
    convolution: Tensor  # (width, channels)
    decay_rate: Tensor  # (value heads,)
    decay_bias: Tensor  # (value heads,)

    def kept(self, projected: Tensor) -> Tensor:
        """Return what the memory of every head is multiplied with: (N, heads)."""
        return torch.exp(-self.decay_rate * F.softplus(projected.float() + self.decay_bias))

    def step(self, state: Recurrence, row: DeltaRows) -> tuple[Recurrence, Tensor]:
        """Take one row in: decay, correct what its key recalls, read with its query."""
        inputs = torch.cat([state.window, row.mixed[None].float()])  # (width, channels)
        mixed = inputs[0] * self.convolution[0]
        for row_inputs, factors in zip(inputs[1:], self.convolution[1:], strict=True):
            mixed = mixed + row_inputs * factors
        query, key, value = self._heads(F.silu(mixed))
        memory = state.memory * row.decay[:, None, None]
        recalled = (memory * key[:, :, None]).sum(1)  # (heads, value_dim)
        correction = row.beta[:, None] * (value - recalled)
        memory = memory + key[:, :, None] * correction[:, None]
        read = (memory * query[:, :, None]).sum(1)  # (heads, value_dim)
        return Recurrence(memory, inputs[1:]), read.view(-1)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cut into heads; queries and keys of unit length, repeated for the value heads."""
        block = self.block
        key_size = block.num_key_heads * block.key_dim
        sizes = [key_size, key_size, block.num_value_heads * block.value_dim]
        query, key, value = mixed.split(sizes)
        num_each = block.num_value_heads // block.num_key_heads
        query = _unit(query.view(-1, block.key_dim)) * block.key_dim**-0.5
        key = _unit(key.view(-1, block.key_dim))
        return (
            query.repeat_interleave(num_each, 0),
            key.repeat_interleave(num_each, 0),
            value.view(-1, block.value_dim),
        )


def _unit(heads: Tensor) -> Tensor:
    return heads / torch.sqrt(heads.square().sum(-1, keepdim=True) + UNIT_EPS)
