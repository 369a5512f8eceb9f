"""The gated delta rule in torch: one recurrence step per row, in order, in float32.

In:  rows, and how their sequences take them in. Out: what the mixer adds to the rows.
A step takes one row, or rows of several sequences whose states lie side by side. In exact mode all
shapes are those of one row, so how rows are cut into passes changes no bit.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import GatedDeltaNet
from headlong.ops.recurrent_state import Recurrence, RecurrentRows
from headlong.ops.torch.recurrent import TakeIn, convolve

if TYPE_CHECKING:
    from headlong.ops.torch.ops import TorchOps

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys before they are divided by it."""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """A block's own numbers on the device, and the step they define."""

    block: GatedDeltaNet
    convolution: Tensor  # (width, channels)
    decay_rate: Tensor  # (value heads,)
    decay_bias: Tensor  # (value heads,)

    @staticmethod
    def numbers(block: GatedDeltaNet, device: torch.device) -> list[Tensor]:
        """Return a block's own numbers on a device."""
        vectors = (block.convolution, block.decay_rate, block.decay_bias)
        return [torch.tensor(one, device=device) for one in vectors]

    def result(self, ops: "TorchOps", x: Tensor, take_in: TakeIn) -> Tensor:
        """Return what the mixer adds to x: (N, H) → (N, H)."""
        block = self.block
        normed = ops.norm(x, block.norm)
        projected = RecurrentRows(
            ops.project(normed, block.mixed),
            ops.by_row(torch.sigmoid, ops.project(normed, block.update).float()),
            ops.by_row(self.kept, ops.project(normed, block.decay)),
        )
        read = take_in(projected, self.step)
        heads = read.view(len(x), -1, block.value_dim)
        gate = ops.by_row(F.silu, ops.project(normed, block.gate))
        gated = ops.norm(heads, block.head_norm).view(len(x), -1) * gate
        if block.tiles_output:
            by_key_head = gated.view(len(x), block.num_key_heads, -1, block.value_dim)
            gated = by_key_head.transpose(1, 2).reshape(len(x), -1)
        return ops.project(gated.to(ops.dtype), block.output)

    def kept(self, projected: Tensor) -> Tensor:
        """Return what the memory of every head is multiplied with: (N, heads)."""
        return torch.exp(-self.decay_rate * F.softplus(projected.float() + self.decay_bias))

    def step(self, state: Recurrence, row: RecurrentRows) -> tuple[Recurrence, Tensor]:
        """Take one row in: decay, correct what its key recalls, read with its query."""
        inputs = torch.cat([state.window, row.mixed[None].float()])  # (width, …, channels)
        query, key, value = self._heads(convolve(inputs, self.convolution))
        memory = state.memory * row.decay[..., None, None]
        recalled = (memory * key[..., None]).sum(-2)  # (…, heads, value_dim)
        correction = row.strength[..., None] * (value - recalled)
        memory = memory + key[..., None] * correction[..., None, :]
        read = (memory * query[..., None]).sum(-2)  # (…, heads, value_dim)
        return Recurrence(memory, inputs[1:]), read.flatten(-2)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cut into heads; queries and keys of unit length, repeated for the value heads."""
        block = self.block
        key_size = block.num_key_heads * block.key_dim
        sizes = [key_size, key_size, block.num_value_heads * block.value_dim]
        query, key, value = mixed.split(sizes, -1)
        num_each = block.num_value_heads // block.num_key_heads
        query = _unit(query.unflatten(-1, (-1, block.key_dim))) * block.key_dim**-0.5
        key = _unit(key.unflatten(-1, (-1, block.key_dim)))
        return (
            query.repeat_interleave(num_each, -2),
            key.repeat_interleave(num_each, -2),
            value.unflatten(-1, (-1, block.value_dim)),
        )


def _unit(heads: Tensor) -> Tensor:
    return heads / torch.sqrt(heads.square().sum(-1, keepdim=True) + UNIT_EPS)
