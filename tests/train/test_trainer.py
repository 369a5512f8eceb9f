"""Training resumes exactly where it stopped; the weights of rows in the loss."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headlong.errors import RequestError
from headlong.train.batches import make_batch, plan_epoch
from headlong.train.loss import Targets
from headlong.train.progress import Report
from headlong.train.recipe import Recipe
from headlong.train.shards import Answer, Answers, read_shards, write_shard
from headlong.train.teacher import Teacher
from headlong.train.torch_head import make_head
from headlong.train.trainer import Trainer, round_begin_weights

VOCABULARY = np.arange(0, 266, 2)


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    """Random texts of several lengths."""
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, 266, int(rng.integers(12, 100))) for _ in range(30)]
    write_shard(tmp_path / "shard-00000.npz", [Answer(t, 5, 0.0, "random") for t in texts], 0)
    return read_shards(tmp_path)


def make_trainer(teacher: Teacher, recipe: Recipe, steps: int = 24, **changes: Any) -> Trainer:
    """A trainer before its first step."""
    recipe = replace(recipe, training=replace(recipe.training, steps=steps, **changes))
    torch.manual_seed(0)
    head = make_head(recipe.head, teacher, VOCABULARY, recipe.training.num_depths)
    return Trainer(teacher, head, torch.from_numpy(VOCABULARY), recipe)


def stop_after(trainer: Trainer, answers: Answers, path: Path, report: Report) -> None:
    """Run seven steps and save, as a call does when its time is up."""
    batches = trainer._batches(answers)
    trainer._begin(answers, report)
    for _ in range(7):
        trainer.run_step(next(batches))
    trainer.save(path)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_resumed_run_has_the_same_weights_bit_for_bit(
    tiny_teacher: Teacher,
    tiny_recipe: Recipe,
    answers: Answers,
    tmp_path: Path,
    quiet: Report,
    optimiser: str,
) -> None:
    whole = make_trainer(tiny_teacher, tiny_recipe, optimiser=optimiser)
    whole.train(answers, tmp_path / "whole.pt", 600, quiet)

    path = tmp_path / "cut.pt"
    killed = make_trainer(tiny_teacher, tiny_recipe, optimiser=optimiser)
    stop_after(killed, answers, path, quiet)
    killed.run_step(next(killed._batches(answers)))  # lost in the kill
    resumed = make_trainer(tiny_teacher, tiny_recipe, optimiser=optimiser)
    resumed.restore(path)
    assert resumed.state.step == 7
    resumed.train(answers, path, 600, quiet)

    assert resumed.state.step == whole.state.step == 24
    for name, values in whole.head.state_dict().items():
        assert torch.equal(values, resumed.head.state_dict()[name]), name


def test_the_state_of_another_optimiser_is_refused(
    tiny_teacher: Teacher, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    make_trainer(tiny_teacher, tiny_recipe, optimiser="muon").save(tmp_path / "state.pt")
    with pytest.raises(RequestError, match="another head or optimiser"):
        make_trainer(tiny_teacher, tiny_recipe).restore(tmp_path / "state.pt")


def test_a_state_from_before_muon_is_continued(
    tiny_teacher: Teacher, tiny_recipe: Recipe, answers: Answers, tmp_path: Path, quiet: Report
) -> None:
    path = tmp_path / "state.pt"
    stop_after(make_trainer(tiny_teacher, tiny_recipe), answers, path, quiet)
    stored = torch.load(path, weights_only=True)
    torch.save({**stored, "optimiser": stored["optimiser"][0]}, path)
    trainer = make_trainer(tiny_teacher, tiny_recipe)
    trainer.restore(path)
    assert trainer.state.step == 7


def test_other_answers_start_a_new_epoch(
    tiny_teacher: Teacher, tiny_recipe: Recipe, answers: Answers, tmp_path: Path, quiet: Report
) -> None:
    trainer = make_trainer(tiny_teacher, tiny_recipe)
    stop_after(trainer, answers, tmp_path / "state.pt", quiet)
    epoch = trainer.state.epoch
    trainer._begin(replace(answers, fingerprint="other"), quiet)
    assert (trainer.state.epoch, trainer.state.place) == (epoch + 1, 0)


def test_the_rate_warms_up_and_falls_with_the_budget(
    tiny_teacher: Teacher, tiny_recipe: Recipe
) -> None:
    trainer = make_trainer(tiny_teacher, tiny_recipe, steps=100)
    rates = []
    for step in (0, 4, 50, 99):
        trainer.state.step = step
        rates.append(trainer.learning_rate() / tiny_recipe.training.learning_rate)
    assert rates[0] == pytest.approx(0.2, rel=0.01)
    assert rates[1] > 0.99
    assert rates[2] == pytest.approx(0.51, rel=0.02)
    assert rates[3] < 0.03


def test_the_time_limit_of_a_call_ends_it(
    tiny_teacher: Teacher, tiny_recipe: Recipe, answers: Answers, tmp_path: Path, quiet: Report
) -> None:
    trainer = make_trainer(tiny_teacher, tiny_recipe, steps=10_000)
    trainer.train(answers, tmp_path / "state.pt", 0.0, quiet)
    assert trainer.state.step == 1
    assert (tmp_path / "state.pt").is_file()


def test_an_epoch_contains_every_answer_once(answers: Answers) -> None:
    plan = plan_epoch(answers, 256, (1, 2))
    members = np.concatenate([batch.members for batch in plan])
    assert sorted(members.tolist()) == list(range(30))
    assert all(len(b.members) * b.length <= 256 or len(b.members) == 1 for b in plan)
    again = plan_epoch(answers, 256, (1, 2))
    assert [b.members.tolist() for b in plan] == [b.members.tolist() for b in again]


def test_rows_after_a_refused_token_lose_their_weight(
    tiny_teacher: Teacher, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of training, a depth is trained on rows with overlap at the depth before."""
    settings = replace(tiny_recipe.training, on_path_share=1.0, num_depths=2, depth_decay=1.0)
    settings = replace(settings, refusal_share=0.0)
    trainer = make_trainer(tiny_teacher, replace(tiny_recipe, training=settings))
    sequences = torch.zeros(8, dtype=torch.long)
    logits = torch.zeros(9, len(VOCABULARY))
    logits[:, 0] = 60.0  # the backbone is sure of the first draft token everywhere
    states = torch.randn(8, tiny_teacher.config.hidden_size, requires_grad=True)
    first_logits = torch.full((8, len(VOCABULARY)), 0.0)
    first_logits[:, 1] = 60.0  # the head is sure of another one at depth 1 …
    first_logits[:4, 0] = 120.0  # … except in the first four rows
    mix = torch.randn(tiny_teacher.config.hidden_size, len(VOCABULARY))

    def head_logits(rows: torch.Tensor, depth: int) -> torch.Tensor:
        return first_logits if depth == 1 else rows @ mix

    monkeypatch.setattr(trainer.head, "logits", head_logits)
    trainer.state.step = 24  # the end of the schedule
    total, overlaps = trainer._sum_depths(
        iter([states, states]), Targets(logits, sequences), torch.ones(8)
    )
    total.backward()
    assert states.grad is not None
    assert states.grad[:4].abs().sum() > 0
    assert float(states.grad[4:].abs().max()) < 1e-9
    assert float(overlaps[0]) == pytest.approx(0.5)


def test_rows_after_refused_tokens_have_the_largest_weight() -> None:
    overlap = torch.tensor([1.0, 0.25, 1.0])
    assert round_begin_weights(overlap, 0.0).tolist() == [1.0, 1.0, 1.0]
    # The first row has none before it; the second follows a sure, the third a doubtful token.
    assert round_begin_weights(overlap, 1.0).tolist() == [1.0, 0.0, 0.75]
    assert round_begin_weights(overlap, 0.5).tolist() == [1.0, 0.5, 0.875]


def test_the_loss_temperature_is_the_sampling_temperature(
    tiny_teacher: Teacher, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tiny_teacher, tiny_recipe)
    seen: list[torch.Tensor] = []

    def record(*args: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        seen.append(args[-1])
        return next(iter(args[0])).sum(), []

    monkeypatch.setattr(trainer, "_sum_depths", record)
    ids = np.arange(24).reshape(2, 12) % 200
    temperatures = np.array([0.0, 1.0], dtype=np.float32)
    trainer.run_step(make_batch([ids[0], ids[1]], [2, 2], temperatures, 12))
    assert set(seen[0].tolist()) == {1 / tiny_recipe.training.least_temperature, 1.0}
