"""Mamba-2 in torch: one step of the state space per row, in order, in float32.

In:  rows, and how their sequences take them in. Out: what the mixer adds to the rows.
A step takes one row, or rows of several sequences whose states lie side by side. In exact mode all
shapes are those of one row, so how rows are cut into passes changes no bit.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import Mamba2
from headlong.ops.recurrent_state import Recurrence, RecurrentRows
from headlong.ops.torch.maths import rms_norm
from headlong.ops.torch.recurrent import TakeIn, convolve

if TYPE_CHECKING:
    from headlong.ops.torch.ops import TorchOps


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A block's own numbers on the device, and the step they define."""

    block: Mamba2
    convolution: Tensor  # (width, channels)
    convolution_bias: Tensor  # (channels,)
    decay_rate: Tensor  # (heads,)
    step_bias: Tensor  # (heads,)
    skip: Tensor  # (heads,)
    norm_weight: Tensor  # (groups, heads of each * head_dim)

    @staticmethod
    def numbers(block: Mamba2, device: torch.device) -> list[Tensor]:
        """Return a block's own numbers on a device."""
        weight = block.group_norm.weight.reshape(block.num_groups, -1)
        vectors = (block.decay_rate, block.step_bias, block.skip, weight)
        factors = (block.convolution, block.convolution_bias)
        return [torch.tensor(one, device=device) for one in (*factors, *vectors)]

    def result(self, ops: "TorchOps", x: Tensor, take_in: TakeIn) -> Tensor:
        """Return what the mixer adds to x: (N, H) → (N, H)."""
        block = self.block
        normed = ops.norm(x, block.norm)
        steps = ops.by_row(self.time_steps, ops.project(normed, block.step))
        kept = ops.by_row(self.kept, steps)
        projected = RecurrentRows(ops.project(normed, block.mixed), steps, kept)
        read = take_in(projected, self.step)
        gated = read * ops.by_row(F.silu, ops.project(normed, block.gate).float())
        groups = gated.view(len(x), block.num_groups, -1)
        scaled = ops.by_row(self.scale, groups).view(len(x), -1)
        return ops.project(scaled.to(ops.dtype), block.output)

    def scale(self, groups: Tensor) -> Tensor:
        """Give every group unit root mean square, times the learned weight: (N, groups, …)."""
        return rms_norm(groups, self.norm_weight, self.block.group_norm.eps)

    def time_steps(self, projected: Tensor) -> Tensor:
        """Return how long every head's step is: (N, heads)."""
        return F.softplus(projected.float() + self.step_bias).clamp(*self.block.step_limits)

    def kept(self, steps: Tensor) -> Tensor:
        """Return what the state of every head is multiplied with: (N, heads)."""
        return torch.exp(-self.decay_rate * steps)

    def step(self, state: Recurrence, row: RecurrentRows) -> tuple[Recurrence, Tensor]:
        """Take one row in: decay, add what it brings, read, and let its own value through."""
        block = self.block
        inputs = torch.cat([state.window, row.mixed[None].float()])  # (width, …, channels)
        mixed = convolve(inputs, self.convolution, self.convolution_bias)
        key_size = block.num_groups * block.state_size
        sizes = [key_size, key_size, block.num_heads * block.head_dim]
        query, key, value = mixed.split(sizes, -1)
        num_each = block.num_heads // block.num_groups
        query = query.unflatten(-1, (block.num_groups, -1)).repeat_interleave(num_each, -2)
        key = key.unflatten(-1, (block.num_groups, -1)).repeat_interleave(num_each, -2)
        value = value.unflatten(-1, (block.num_heads, -1))  # (…, heads, head_dim)
        brought = row.strength[..., None] * value
        kept = state.memory * row.decay[..., None, None]
        memory = kept + key[..., None] * brought[..., None, :]
        read = (memory * query[..., None]).sum(-2) + self.skip[:, None] * value
        return Recurrence(memory, inputs[1:]), read.flatten(-2)
