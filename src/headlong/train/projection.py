"""Projection: a linear layer that can learn in the format it will run in.

In:  rows. Out: rows, through the layer's matrix or, once `learn_packed` was called, through what
packing it to 4 bits would leave of it. Gradients pass the rounding unchanged, so the weights move
to where rounding hurts least. Optimisers see the unrounded weights, files the rounded ones: then
a head is the same in every format it may be packed in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

from headlong.train.pointwise import GROUP, Pointwise


class Projection(nn.Linear):
    """A linear layer of a head."""

    round_weight: Callable[[Tensor], Tensor] | None = None
    rounded: Tensor | None = None
    """The rounded matrix, while `rounded_once` keeps it."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply rows: (N, in) → (N, out)."""
        weight = self.rounded if self.rounded is not None else self.learned_weight()
        return F.linear(x, weight, self.bias)

    def learned_weight(self) -> Tensor:
        """Return the matrix that rows are multiplied with; gradients reach the unrounded one."""
        if self.round_weight is None:
            return self.weight
        return self.weight + (self.running_weight() - self.weight.detach())

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


@contextmanager
def rounded_once(head: nn.Module) -> Iterator[None]:
    """Round every matrix of a head once for all its depths; weights must not move meanwhile."""
    packed = [m for m in head.modules() if isinstance(m, Projection) and m.round_weight is not None]
    for module in packed:
        module.rounded = module.learned_weight()
    try:
        yield
    finally:
        for module in packed:
            module.rounded = None


def running_parameters(head: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a head's parameters as it runs with them, by name."""
    modules = dict(head.named_modules())
    for name, parameter in head.named_parameters():
        owner, _, leaf = name.rpartition(".")
        module = modules[owner]
        is_matrix = isinstance(module, Projection) and leaf == "weight"
        yield name, module.running_weight() if is_matrix else parameter.detach()
