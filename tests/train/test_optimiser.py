"""Which optimiser updates which parameters of a head."""

import numpy as np
import pytest
import torch

from headlong.train.optimiser import Optimiser
from headlong.train.recipe import HeadRecipe, HeadShape, TrainingRecipe
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead, make_head


def some_head(teacher: Teacher, kind: HeadShape = "eagle3") -> TorchHead:
    """A head whose parameters all have a gradient."""
    torch.manual_seed(0)
    head = make_head(HeadRecipe(kind=kind), teacher, np.arange(64), 2)
    for parameter in head.parameters():
        parameter.grad = torch.randn_like(parameter)
    return head


def changes(head: TorchHead, name: str, learning_rate: float) -> dict[str, torch.Tensor]:
    """What one step changes, by parameter."""
    before = {key: one.detach().clone() for key, one in head.named_parameters()}
    optimiser = Optimiser(head, TrainingRecipe(optimiser=name, weight_decay=0.0))  # type: ignore[arg-type]
    optimiser.step(learning_rate)
    return {key: one.detach() - before[key] for key, one in head.named_parameters()}


@pytest.mark.parametrize("kind", ["eagle3", "nextn", "medusa"])
def test_muon_updates_the_matrices_of_the_layer(tiny_teacher: Teacher, kind: HeadShape) -> None:
    """Its updates have nearly equal singular values, those of AdamW do not."""
    found = changes(some_head(tiny_teacher, kind), "muon", 1e-3)
    plain = changes(some_head(tiny_teacher, kind), "adamw", 1e-3)
    for name, change in found.items():
        if change.ndim == 2 and "lm_head" not in name:
            values = torch.linalg.svdvals(change)
            assert values.max() < 2 * values.median(), name
            # Of AdamW's size, 0.2 times the rate, times the factor for Muon.
            assert float(change.square().mean().sqrt()) == pytest.approx(0.6e-3, rel=0.2), name
        else:
            torch.testing.assert_close(change, plain[name])


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_updates_follow_the_learning_rate(tiny_teacher: Teacher, name: str) -> None:
    slow = changes(some_head(tiny_teacher), name, 1e-4)
    fast = changes(some_head(tiny_teacher), name, 2e-4)
    for key, change in fast.items():
        torch.testing.assert_close(change, 2 * slow[key], rtol=2e-2, atol=1e-6)
