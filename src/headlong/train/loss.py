"""Loss of a head's draft distribution q at one depth, given the backbone's distribution p.

kl  the divergence KL(p‖q) over the draft vocabulary.
lk  λ · KL + (1 − λ)(1 − overlap) with λ = exp(−3 · overlap). Where the overlap Σ min(p, q) is small
    this is close to the divergence, where it is large to 1 − overlap. The overlap is the chance
    that a sampled draft token is accepted, at the temperature of p and q.
In: logits of one depth, target logits, logit scales (1 / temperature). Out: a loss per row, with
gradients in closed form.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.train.pointwise import Pointwise
from headlong.train.recipe import LossName


@dataclass(frozen=True, slots=True)
class Targets:
    """The backbone's logits over the draft vocabulary, for every start row and some rows beyond.

    The start rows of one answer are consecutive. Row i at depth d predicts the same token as row
    i + 1 at depth d - 1. So the target of depth d is the target of depth 1 of the row d - 1 places
    ahead, if that row belongs to the same answer.
    """

    logits: Tensor  # (N + depths - 1, V_draft)
    sequences: Tensor  # (N,), -1 for padding

    def at_depth(self, depth: int) -> Tensor:
        """Return the target logits of `depth`, from 1: (N, V_draft)."""
        return self.logits[depth - 1 : depth - 1 + len(self.sequences)]

    def is_valid(self, depth: int) -> Tensor:
        """Return for every row whether its answer has a target at `depth`: (N,)."""
        ahead = F.pad(self.sequences[depth - 1 :], (0, depth - 1), value=-1)
        return (self.sequences >= 0) & (ahead == self.sequences)


def make_targets(
    normed: Tensor,
    score: Callable[[Tensor], Tensor],
    starts: Tensor,
    sequences: Tensor,
    num_depths: int,
) -> Targets:
    """Compute the frozen backbone's logits, once for all depths.

    Args:
        normed: (B * T, H) the backbone's final hidden rows.
        score: The backbone's logits of the draft tokens: (N, H) → (N, V_draft).
        starts: (N,) start rows; the target of depth 1 is at the row after the start row.
        sequences: (N,) the answer of each start row.
        num_depths: Number of depths that need targets.
    """
    rows = normed[torch.clamp(starts + 1, max=len(normed) - 1)]
    return Targets(score(F.pad(rows, (0, 0, 0, num_depths - 1))), sequences)


class _DraftLoss(torch.autograd.Function):
    """Saves only logits for the backward pass, which recomputes the probabilities."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        logit_scales: Tensor,
        pointwise: Pointwise,
        name: LossName,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the overlap of every row."""
        divergence, overlap, short_mass = pointwise.loss_forward(logits, targets, logit_scales)
        kl_share = torch.exp(-3 * overlap) if name == "lk" else torch.ones_like(overlap)
        rows = kl_share * divergence + (1 - kl_share) * (1 - overlap)
        ctx.pointwise = pointwise
        ctx.save_for_backward(
            logits, targets, logit_scales, torch.stack([kl_share, 1 - kl_share]), short_mass
        )
        ctx.mark_non_differentiable(overlap)
        return rows, overlap

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, _grad_overlap: Tensor
    ) -> tuple[Tensor, None, None, None, None]:
        """Return the gradient with respect to the logits."""
        logits, targets, logit_scales, shares, short_mass = ctx.saved_tensors
        gradient = ctx.pointwise.loss_backward(
            logits, targets, logit_scales, shares * grad, short_mass
        )
        return gradient, None, None, None, None


def draft_loss(
    logits: Tensor,
    targets: Tensor,
    logit_scales: Tensor,
    pointwise: Pointwise,
    name: LossName,
) -> tuple[Tensor, Tensor]:
    """Return the loss and the overlap of every row, (N,) each; only the loss has a gradient."""
    result: tuple[Tensor, Tensor] = _DraftLoss.apply(logits, targets, logit_scales, pointwise, name)
    return result


def depth_weights(num_depths: int, decay: float) -> list[float]:
    """Return the weights of all depths, which sum to 1."""
    raw = [decay**depth for depth in range(num_depths)]
    return [weight / sum(raw) for weight in raw]
