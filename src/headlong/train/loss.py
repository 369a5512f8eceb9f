"""Loss: how far a head's drafts are from what the backbone would say.

kl  the divergence from the backbone's probabilities over the draft vocabulary.
lk  λ · KL + (1 − λ)(1 − overlap) with λ = exp(−3 · overlap): far off it follows the divergence,
    close by it maximises the overlap Σ min(p, q), which is the chance that a sampled draft stands.
In: logits of one depth, target logits, how sharply to look. Out: a number per row, with gradients
in closed form. Sharpness is 1 / temperature: overlap is then the chance at that temperature.
"""

from typing import Any

import torch
from torch import Tensor

from headlong.train.pointwise import Pointwise
from headlong.train.recipe import LossName


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
