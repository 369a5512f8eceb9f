"""Projection: a linear layer that supports quantisation-aware training (QAT).

In:  rows. Out: rows times the weight matrix. After `enable_qat` the matrix is rounded as packing it
to 4 bits would round it. Gradients pass the rounding unchanged (straight-through estimator).
Optimisers update the unrounded weights; files get the rounded ones, so that a head has the same
weights in every format that it is packed in.
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
    """The rounded matrix, inside `round_once`."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply rows: (N, in) → (N, out)."""
        weight = self.rounded if self.rounded is not None else self.straight_through_weight()
        return F.linear(x, weight, self.bias)

    def straight_through_weight(self) -> Tensor:
        """Return the effective matrix; its gradient is passed on to the unrounded one."""
        if self.round_weight is None:
            return self.weight
        return self.weight + (self.effective_weight() - self.weight.detach())

    def effective_weight(self) -> Tensor:
        """Return the matrix that rows are multiplied with, detached: rounded under QAT."""
        weight = self.weight.detach()
        return weight if self.round_weight is None else self.round_weight(weight)


def enable_qat(head: nn.Module, pointwise: Pointwise) -> None:
    """Make all projections of a head round their weights in 4-bit groups.

    Matrices whose rows are not whole groups are not rounded; packing leaves them out too.
    """
    for module in head.modules():
        if isinstance(module, Projection) and module.in_features % GROUP == 0:
            module.round_weight = pointwise.round_to_q4


@contextmanager
def round_once(head: nn.Module) -> Iterator[None]:
    """Round every matrix of a head once for all depths; weights must not change inside."""
    packed = [m for m in head.modules() if isinstance(m, Projection) and m.round_weight is not None]
    for module in packed:
        module.rounded = module.straight_through_weight()
    try:
        yield
    finally:
        for module in packed:
            module.rounded = None


def effective_parameters(head: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a head's parameters by name, detached; matrices are rounded under QAT."""
    modules = dict(head.named_modules())
    for name, parameter in head.named_parameters():
        owner, _, leaf = name.rpartition(".")
        module = modules[owner]
        is_matrix = isinstance(module, Projection) and leaf == "weight"
        yield name, module.effective_weight() if is_matrix else parameter.detach()
