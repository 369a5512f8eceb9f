"""Calibration: finds the factor by which a head's logits are wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headlong.train.calibrate import SCALES, fit_logit_scale
from headlong.train.forward_cache import ForwardCache
from headlong.train.recipe import Recipe
from headlong.train.shards import Answer, Answers, read_shards, write_shard
from headlong.train.teacher import Teacher
from headlong.train.torch_head import TorchHead, make_head

VOCABULARY = np.arange(0, 256)


class Mirror(TorchHead):
    """Returns the backbone's logits times a factor."""

    def __init__(self, teacher: Teacher, factor: float) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(teacher.config.hidden_size, len(VOCABULARY), bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(factor * teacher.lm_rows(torch.from_numpy(VOCABULARY)))

    def rollout(self, hidden, token_ids, starts=None):  # type: ignore[no-untyped-def]
        """Yield the next row's state, which is that of the target."""
        yield hidden.normed[starts.rows + 1]

    def logits(self, state: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the LM head's logits."""
        return self.lm_head(state)


def sampled_answers(folder: Path, temperature: float) -> Answers:
    """Random answers, labelled with a temperature."""
    rng = np.random.default_rng(1)
    answers = [Answer(rng.integers(0, 256, 40), 4, temperature, "words") for _ in range(24)]
    write_shard(folder / "shard-00000.npz", answers, 24)
    return read_shards(folder)


def fit(teacher: Teacher, head: TorchHead, answers: Answers) -> float:
    """Fit the scale; a forward pass for every batch."""
    forward = ForwardCache(teacher, (), 0).forward
    vocabulary = torch.from_numpy(VOCABULARY)
    found: float = fit_logit_scale(
        teacher, head, vocabulary, answers, lambda batch, ids: forward(batch)
    )
    return found


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.5, 2.0])
def test_a_known_factor_is_found(tiny_teacher: Teacher, tmp_path: Path, scale: float) -> None:
    head = Mirror(tiny_teacher, 1 / scale)
    answers = sampled_answers(tmp_path, 1.0)
    found = fit(tiny_teacher, head, answers)
    assert abs(SCALES.index(found) - SCALES.index(scale)) <= 1


def test_greedy_answers_alone_give_scale_one(tiny_teacher: Teacher, tmp_path: Path) -> None:
    head = Mirror(tiny_teacher, 0.5)
    answers = sampled_answers(tmp_path, 0.0)
    assert fit(tiny_teacher, head, answers) == 1.0


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_scaling_multiplies_the_logits(
    tiny_teacher: Teacher, tiny_recipe: Recipe, kind: str
) -> None:
    recipe = type(tiny_recipe.head)(kind=kind, draft_vocab_size=64)  # type: ignore[arg-type]
    head = make_head(recipe, tiny_teacher, np.arange(64), 2)
    states = torch.randn(3, tiny_teacher.config.hidden_size)
    before = head.logits(states, 1)
    head.scale_logits(1.5)
    torch.testing.assert_close(head.logits(states, 1), 1.5 * before)
