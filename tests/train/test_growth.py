"""A head that starts from a smaller one drafts as that one does, before training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from headlong.arrays import IntArray
from headlong.errors import HeadError
from headlong.heads.head_weights import HeadWeights
from headlong.train.export import head_weights
from headlong.train.growth import grow_from
from headlong.train.recipe import HeadRecipe, HeadShape
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead, make_head

KNOWN = np.arange(3, 203, 2)
MORE = np.arange(1, 241)
KINDS: tuple[HeadShape, ...] = ("eagle3", "nextn", "medusa")


def perturbed(teacher: Teacher, recipe: HeadRecipe) -> tuple[TorchHead, HeadWeights]:
    """A head with perturbed weights, and its file."""
    torch.manual_seed(3)
    head = make_head(recipe, teacher, KNOWN, 3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return head, head_weights(head, recipe, KNOWN, "float32")


def grown(teacher: Teacher, recipe: HeadRecipe, weights: HeadWeights, ids: IntArray) -> TorchHead:
    """A new head that starts from the file."""
    head = make_head(recipe, teacher, ids, 3)
    grow_from(head, weights, ids)
    return head


def draft(teacher: Teacher, head: TorchHead) -> list[Tensor]:
    """Logits of every depth for some tokens."""
    ids = torch.arange(40).view(2, 20) * 5 + 7
    with torch.no_grad():
        states = head.rollout(teacher.forward(ids, head.tap_layers), ids)
        return [head.logits(next(states), depth) for depth in (1, 2, 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_head_gives_old_tokens_the_same_logits(
    tiny_teacher: Teacher, kind: HeadShape
) -> None:
    recipe = HeadRecipe(kind=kind, mlp_share=1 / 3)
    smaller, weights = perturbed(tiny_teacher, recipe)
    larger = grown(tiny_teacher, replace(recipe, mlp_share=2.0), weights, MORE)
    columns = torch.from_numpy(np.searchsorted(MORE, KNOWN))
    for before, after in zip(
        draft(tiny_teacher, smaller), draft(tiny_teacher, larger), strict=True
    ):
        torch.testing.assert_close(after[:, columns], before, atol=1e-4, rtol=1e-4)


def test_additional_tokens_get_the_linear_map_of_the_others(tiny_teacher: Teacher) -> None:
    smaller, _ = perturbed(tiny_teacher, HeadRecipe())
    turn = torch.linalg.qr(torch.randn(2 * [smaller.lm_head.in_features])).Q
    with torch.no_grad():
        smaller.lm_head.weight.copy_(tiny_teacher.lm_rows(torch.from_numpy(KNOWN)) @ turn)
    larger = grown(
        tiny_teacher, HeadRecipe(), head_weights(smaller, HeadRecipe(), KNOWN, "float32"), MORE
    )
    wanted = tiny_teacher.lm_rows(torch.from_numpy(MORE)) @ turn
    further = torch.from_numpy(~np.isin(MORE, KNOWN))
    error = (larger.lm_head.weight - wanted)[further].norm() / wanted[further].norm()
    assert error < 0.1


def test_a_narrower_head_is_refused(tiny_teacher: Teacher) -> None:
    _, weights = perturbed(tiny_teacher, HeadRecipe())
    with pytest.raises(HeadError, match="mlp_share"):
        grown(tiny_teacher, HeadRecipe(mlp_share=1 / 3), weights, MORE)


def test_a_head_with_other_tensors_is_refused(tiny_teacher: Teacher) -> None:
    _, weights = perturbed(tiny_teacher, HeadRecipe(kind="medusa"))
    with pytest.raises(HeadError, match="has other tensors"):
        grown(tiny_teacher, HeadRecipe(), weights, MORE)
