"""Projection: a linear layer that can learn in the format it will run in.

In:  rows. Out: rows, through the layer's matrix or, once `learn_packed` was called, through what
packing it to 4 bits would leave of it. Gradients pass the rounding unchanged, so the weights move
to where rounding hurts least. Optimisers see the unrounded weights, files the rounded ones: then
a head is the same in every format it may be packed in.
"""

from collections.abc import Callable, Iterator

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
            weight = weight + (self.running_weight() - weight.detach())
        return F.linear(x, weight, self.bias)

    def running_weight(self) -> Tensor:
        """Return the matrix that rows are multiplied with, without its history."""
        weight = self.weight.detach()
        return weight if self.round_weight is None else self.round_weight(weight)


def learn_packed(head: nn.Module, pointwise: Pointwise) -> None:
    """Let all projections of a head see their weights in 4-bit groups from now on.

    Rows that are not whole groups stay as they are, as they do when a head is packed.
    """
    for module in head.modules():
        if isinstance(module, Projection) and module.in_features % GROUP == 0:
            module.round_weight = pointwise.round_to_q4


def running_parameters(head: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a head's parameters as it runs with them, by name."""
    modules = dict(head.named_modules())
    for name, parameter in head.named_parameters():
        owner, _, leaf = name.rpartition(".")
        module = modules[owner]
        is_matrix = isinstance(module, Projection) and leaf == "weight"
        yield name, module.running_weight() if is_matrix else parameter.detach()
