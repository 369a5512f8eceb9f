"""The loss: closed-form gradients against automatic ones."""

import pytest
import torch

from headlong.train.loss import depth_weights, draft_loss
from headlong.train.pointwise import make_pointwise
from headlong.train.recipe import LossName

PLAIN = make_pointwise(compile=False)


def written_out(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, name: LossName
) -> torch.Tensor:
    """The formula of the module's docstring."""
    p, q = targets.softmax(-1), logits.softmax(-1)
    divergence = (p * (p.log() - q.log())).sum(-1)
    overlap = torch.minimum(p, q).sum(-1)
    share = torch.exp(-3 * overlap).detach() if name == "lk" else torch.ones_like(overlap)
    return ((share * divergence + (1 - share) * (1 - overlap)) * weights).sum()


@pytest.mark.parametrize("name", ["kl", "lk"])
def test_gradient_is_that_of_the_formula(name: LossName) -> None:
    torch.manual_seed(1)
    logits = (2 * torch.randn(6, 11)).requires_grad_()
    targets, weights = 2 * torch.randn(6, 11), torch.rand(6)
    loss, _ = draft_loss(logits, targets, weights, PLAIN, name)
    (3 * loss).backward()
    found, logits.grad = logits.grad, None
    expected = written_out(logits, targets, weights, name)
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found, logits.grad)


def test_rows_without_weight_teach_nothing() -> None:
    logits = torch.randn(2, 5, requires_grad=True)
    loss, _ = draft_loss(logits, torch.randn(2, 5), torch.tensor([0.0, 1.0]), PLAIN, "lk")
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad[0].any()
    assert logits.grad[1].any()


def test_a_perfect_draft_costs_nothing() -> None:
    logits = torch.randn(3, 7)
    loss, overlap = draft_loss(logits, logits, torch.ones(3), PLAIN, "lk")
    torch.testing.assert_close(loss, torch.zeros(()), atol=1e-5, rtol=0)
    torch.testing.assert_close(overlap, torch.ones(3))


def test_depth_weights_fall_and_add_up_to_one() -> None:
    weights = depth_weights(3, 0.5)
    assert weights == pytest.approx([4 / 7, 2 / 7, 1 / 7])
