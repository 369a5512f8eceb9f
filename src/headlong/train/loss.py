"""Loss: how far a head's drafts are from what the backbone would say at each depth.

kl  the divergence from the backbone's probabilities over the draft vocabulary.
lk  λ · KL + (1 − λ)(1 − overlap) with λ = exp(−3 · overlap): far off it follows the divergence,
    close by it maximises the overlap Σ min(p, q), which is the chance that a sampled draft stands.
In: logits of one depth, target logits, how sharply to look. Out: a number per row, with gradients
in closed form. Sharpness is 1 / temperature: overlap is then the chance at that temperature.
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

    The start rows of one answer lie one after the other. Row i at depth d speaks about the same
    token as row i + 1 at depth d - 1, so the target of depth d is the target of depth 1, d - 1 rows
    on, as long as that row belongs to the same answer.
    """

    logits: Tensor  # (N + depths - 1, V_draft)
    sequences: Tensor  # (N,), -1 for rows that only fill up

    def at_depth(self, depth: int) -> Tensor:
        """Return the logits that `depth` (from 1) is judged by: (N, V_draft)."""
        return self.logits[depth - 1 : depth - 1 + len(self.sequences)]

    def is_valid(self, depth: int) -> Tensor:
        """Tell for every row whether its answer reaches that far: (N,)."""
        ahead = F.pad(self.sequences[depth - 1 :], (0, depth - 1), value=-1)
        return (self.sequences >= 0) & (ahead == self.sequences)


def make_targets(
    normed: Tensor,
    score: Callable[[Tensor], Tensor],
    starts: Tensor,
    sequences: Tensor,
    num_depths: int,
) -> Targets:
    """Score the draft vocabulary with the frozen backbone, once for all depths.

    Args:
        normed: (B * T, H) the backbone's final hidden rows.
        score: The backbone's own scores of the draft tokens: (N, H) → (N, V_draft).
        starts: (N,) start rows; the row after one has seen the token it is paired with.
        sequences: (N,) which answer each belongs to.
        num_depths: How many depths will be asked for.
    """
    rows = normed[torch.clamp(starts + 1, max=len(normed) - 1)]
    return Targets(score(F.pad(rows, (0, 0, 0, num_depths - 1))), sequences)


class _DraftLoss(torch.autograd.Function):
    """Keeps only logits for the backward pass; probabilities are made again there."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        sharpness: Tensor,
        pointwise: Pointwise,
        name: LossName,
    ) -> tuple[Tensor, Tensor]:
        """Return every row's loss and overlap."""
        divergence, overlap, short_mass = pointwise.loss_forward(logits, targets, sharpness)
        kl_share = torch.exp(-3 * overlap) if name == "lk" else torch.ones_like(overlap)
        rows = kl_share * divergence + (1 - kl_share) * (1 - overlap)
        ctx.pointwise = pointwise
        ctx.save_for_backward(
            logits, targets, sharpness, torch.stack([kl_share, 1 - kl_share]), short_mass
        )
        ctx.mark_non_differentiable(overlap)
        return rows, overlap

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, _grad_overlap: Tensor
    ) -> tuple[Tensor, None, None, None, None]:
        """Return the slope with respect to the logits."""
        logits, targets, sharpness, shares, short_mass = ctx.saved_tensors
        slope = ctx.pointwise.loss_backward(logits, targets, sharpness, shares * grad, short_mass)
        return slope, None, None, None, None


def draft_loss(
    logits: Tensor, targets: Tensor, sharpness: Tensor, pointwise: Pointwise, name: LossName
) -> tuple[Tensor, Tensor]:
    """Return every row's loss and overlap: (N,) each; only the loss has a gradient."""
    result: tuple[Tensor, Tensor] = _DraftLoss.apply(logits, targets, sharpness, pointwise, name)
    return result


def depth_weights(num_depths: int, decay: float) -> list[float]:
    """Return the weight of every depth; they add up to 1."""
    raw = [decay**depth for depth in range(num_depths)]
    return [weight / sum(raw) for weight in raw]
