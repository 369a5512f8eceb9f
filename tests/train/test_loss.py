"""The loss: closed-form gradients against autograd, and the shift of targets by depth."""

import numpy as np
import pytest
import torch

from headlong.train.batches import make_batch
from headlong.train.loss import depth_weights, draft_loss, make_targets
from headlong.train.pointwise import make_pointwise
from headlong.train.recipe import LossName

PLAIN = make_pointwise(compile=False)


def reference_loss(
    logits: torch.Tensor, targets: torch.Tensor, logit_scales: torch.Tensor, name: LossName
) -> torch.Tensor:
    """The formula of the module's docstring."""
    p = (targets * logit_scales[:, None]).softmax(-1)
    q = (logits * logit_scales[:, None]).softmax(-1)
    divergence = (p * (p.log() - q.log())).sum(-1)
    overlap = torch.minimum(p, q).sum(-1)
    share = torch.exp(-3 * overlap).detach() if name == "lk" else torch.ones_like(overlap)
    return share * divergence + (1 - share) * (1 - overlap)


@pytest.mark.parametrize("name", ["kl", "lk"])
def test_gradient_equals_that_of_the_formula(name: LossName) -> None:
    torch.manual_seed(1)
    logits = (2 * torch.randn(6, 11)).requires_grad_()
    targets, logit_scales = 2 * torch.randn(6, 11), 0.5 + torch.rand(6)
    weights = torch.rand(6)
    losses, _ = draft_loss(logits, targets, logit_scales, PLAIN, name)
    (losses * weights).sum().backward()
    found, logits.grad = logits.grad, None
    expected = reference_loss(logits, targets, logit_scales, name)
    (expected * weights).sum().backward()
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(found, logits.grad)


def test_rows_without_weight_have_no_gradient() -> None:
    logits = torch.randn(2, 5, requires_grad=True)
    losses, _ = draft_loss(logits, torch.randn(2, 5), torch.ones(2), PLAIN, "lk")
    (losses * torch.tensor([0.0, 1.0])).sum().backward()
    assert logits.grad is not None
    assert not logits.grad[0].any()
    assert logits.grad[1].any()


def test_a_perfect_draft_has_no_loss() -> None:
    logits = torch.randn(3, 7)
    losses, overlap = draft_loss(logits, logits, torch.ones(3), PLAIN, "lk")
    torch.testing.assert_close(losses, torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(overlap, torch.ones(3))


def test_overlap_is_that_of_the_given_temperature() -> None:
    logits, targets = torch.randn(4, 9), torch.randn(4, 9)
    _, overlap = draft_loss(logits, targets, torch.full((4,), 1 / 0.7), PLAIN, "lk")
    p, q = (targets / 0.7).softmax(-1), (logits / 0.7).softmax(-1)
    torch.testing.assert_close(overlap, torch.minimum(p, q).sum(-1))


def test_depth_weights_decay_and_sum_to_one() -> None:
    weights = depth_weights(3, 0.5)
    assert weights == pytest.approx([4 / 7, 2 / 7, 1 / 7])


def test_the_target_of_depth_d_is_the_row_d_places_ahead() -> None:
    # Hidden rows that contain their own index, and a scorer that returns them unchanged.
    batch = make_batch([np.arange(9), np.arange(6)], [3, 2], np.zeros(2, np.float32), length=10)
    normed = torch.arange(20.0)[:, None]
    starts, sequences = torch.from_numpy(batch.starts), torch.from_numpy(batch.sequences)
    targets = make_targets(normed, lambda rows: rows, starts, sequences, num_depths=4)
    # Sequence 0 has tokens 0…8, 3 of them prompt: drafts start at rows 2…6. Sequence 1: 1…3.
    assert batch.starts[batch.sequences == 0].tolist() == [2, 3, 4, 5, 6]
    assert batch.starts[batch.sequences == 1].tolist() == [11, 12, 13]
    last_row = {0: 7, 1: 14}  # the last row whose next token is known
    for depth in range(1, 5):
        is_valid, target = targets.is_valid(depth), targets.at_depth(depth)[:, 0]
        for row, (start, owner) in enumerate(zip(batch.starts, batch.sequences, strict=True)):
            expected = int(start) + depth
            assert bool(is_valid[row]) == (owner >= 0 and expected <= last_row.get(int(owner), -1))
            assert not is_valid[row] or target[row] == expected


def test_padding_rows_are_never_valid() -> None:
    batch = make_batch([np.arange(5)], [2], np.zeros(1, np.float32), length=8)
    sequences = torch.from_numpy(batch.sequences)
    targets = make_targets(
        torch.zeros(8, 2), lambda rows: rows, torch.from_numpy(batch.starts), sequences, 2
    )
    assert len(batch.starts) % 256 == 0
    assert int(targets.is_valid(1).sum()) == 2
    assert int(targets.is_valid(2).sum()) == 1
