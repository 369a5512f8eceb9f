"""Projection: a linear layer that can learn in the format it will run in.

In:  rows. Out: rows, through the layer's matrix or, once `learn_packed` was called, through what
packing it to 4 bits would leave of it. Gradients pass the rounding unchanged, so the weights move
to where rounding hurts least. Files and optimisers see the unrounded weights.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from headlong.train.pointwise import GROUP, Pointwise


class Projection(nn.Linear):
    """A linear layer of a head."""

    round_weight: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Multiply rows: (N, in) → (N, out)."""
        weight = self.weight
        if self.round_weight is not None:
            weight = weight + (self.round_weight(weight.detach()) - weight.detach())
        return F.linear(x, weight, self.bias)


def learn_packed(head: nn.Module, pointwise: Pointwise) -> None:
    """Let all projections of a head see their weights in 4-bit groups from now on.

    Rows that are not whole groups stay as they are, as they do when a head is packed.
    """
    for module in head.modules():
        if isinstance(module, Projection) and module.in_features % GROUP == 0:
            module.round_weight = pointwise.round_to_q4
