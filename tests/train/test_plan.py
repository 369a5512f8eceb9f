"""What a run will take is told before it: work, memory as it is measured, keys to lower."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headlong.train.batches import make_batch
from headlong.train.estimate import model_bytes
from headlong.train.pipeline import Pipeline, RunOptions
from headlong.train.plan import StagePlan, TrainPlan
from headlong.train.recipe import Recipe
from headlong.train.shards import read_shards
from headlong.train.trials import ENOUGH_S, KeptBytes, Trial, try_sizes
from native_heads import write_talking_folder
from quiet_report import QuietReport

ALL = ("generate", "train", "evaluate")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts."""
    path = tmp_path_factory.mktemp("prompts") / "words.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"say {word}"}) for word in ("a", "bb")))
    return path


@pytest.fixture
def pipeline(tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path) -> Pipeline:
    """A run that has not begun."""
    bench = tmp_path / "bench.jsonl"
    bench.write_text("\n".join(json.dumps({"prompt": f"tell {i}"}) for i in range(6)))
    told = RunOptions(
        tiny_gguf, tmp_path / "work", tmp_path / "out", (prompt_file,), bench, device="cpu"
    )
    return Pipeline(tiny_recipe, told, QuietReport())


def by_name(plan: TrainPlan) -> dict[str, StagePlan]:
    """The stages of a plan."""
    return {one.stage: one for one in plan.stages}


def test_the_work_is_that_of_the_recipe(pipeline: Pipeline, tiny_recipe: Recipe) -> None:
    stages = by_name(pipeline.plan(ALL))
    assert stages["generate"].work["tokens"] == tiny_recipe.answers.tokens_wanted
    assert stages["train"].work["steps"] == tiny_recipe.training.steps
    # Four of the six prompts, which are of one task, at two temperatures.
    assert stages["evaluate"].work["answers"] == 8
    assert all(one.total_seconds > 0 for one in stages.values())


def test_what_is_done_already_is_not_planned_again(pipeline: Pipeline, tiny_recipe: Recipe) -> None:
    training = replace(tiny_recipe.training, steps=20)
    pipeline.recipe = replace(tiny_recipe, training=training)
    pipeline.run(["generate", "train"])
    training = replace(training, steps=None, seconds=7.0)
    answers = replace(tiny_recipe.answers, tokens_wanted=1000)
    pipeline.recipe = replace(tiny_recipe, training=training, answers=answers)
    stages = by_name(pipeline.plan(ALL))
    there = read_shards(pipeline.options.work / "answers").num_answer_tokens
    assert stages["generate"].work["tokens"] == 1000 - there
    assert stages["train"].work["steps"] == 0


def test_more_rows_than_answers_still_take_an_answer_s_steps(
    pipeline: Pipeline, tiny_recipe: Recipe
) -> None:
    answers = replace(tiny_recipe.answers, tokens_wanted=16, max_tokens=24)
    pipeline.recipe = replace(tiny_recipe, answers=answers)
    work = by_name(pipeline.plan(["generate"]))["generate"].work
    assert (work["answers"], work["steps"]) == (1, 15)


def test_a_schedule_in_seconds_takes_these(pipeline: Pipeline, tiny_recipe: Recipe) -> None:
    training = replace(tiny_recipe.training, steps=None, seconds=30.0)
    pipeline.recipe = replace(tiny_recipe, training=training)
    train = by_name(pipeline.plan(["train"]))["train"]
    assert train.total_seconds == pytest.approx(30.0, rel=0.3)
    assert train.work["steps"] > 0


def test_memory_is_that_of_a_step_and_of_the_caches(
    pipeline: Pipeline, tiny_recipe: Recipe
) -> None:
    stages = by_name(pipeline.plan(ALL))
    trainer = pipeline._new_trainer(np.arange(128))
    num_weights = sum(one.numel() for one in trainer.head.parameters())
    train = stages["train"].num_bytes
    assert (train["head"], train["optimiser"]) == (4 * num_weights, 12 * num_weights)
    assert train["model"] == model_bytes(pipeline.teacher)
    sampler = pipeline._make_sampler(8, 96 + 24)
    logits = 3 * 4 * 8 * pipeline.teacher.config.vocab_size
    assert stages["generate"].num_bytes["caches"] == sampler.num_bytes + logits

    length = stages["train"].work["tokens"] // stages["train"].work["steps"] // 8
    assert 8 * length == tiny_recipe.training.tokens_per_step == 512
    ids = list(np.random.default_rng(0).integers(0, 266, (8, length)))
    batch = make_batch(ids, [20] * 8, np.zeros(8, np.float32), length)
    with KeptBytes(CPU) as kept:
        trainer.run_step(batch)
    assert train["activations"] == pytest.approx(kept.num_bytes, rel=0.25)


def test_planning_leaves_the_run_as_it_was(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path
) -> None:
    recipe = replace(tiny_recipe, training=replace(tiny_recipe.training, steps=6))
    states = []
    for name, is_planned in (("plain", False), ("planned", True)):
        work = tmp_path / name
        told = RunOptions(tiny_gguf, work, work / "out", (prompt_file,), device="cpu")
        pipeline = Pipeline(recipe, told, QuietReport())
        if is_planned:
            pipeline.plan(["generate", "train"])
            assert not list(work.glob("*"))
        pipeline.run(["generate", "train"])
        states.append(torch.load(work / "training.pt", weights_only=True)["head"])
    for name, values in states[0].items():
        assert torch.equal(values, states[1][name]), name


def test_a_native_layer_is_planned_too(
    tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path
) -> None:
    model = write_talking_folder(tmp_path / "model")
    told = RunOptions(model, tmp_path / "work", tmp_path / "out", (prompt_file,), device="cpu")
    pipeline = Pipeline(tiny_recipe, replace(told, from_native=True), QuietReport())
    train = by_name(pipeline.plan(["train"]))["train"]
    trainer = pipeline._new_trainer(np.arange(128))
    assert train.num_bytes["head"] == 4 * sum(one.numel() for one in trainer.head.parameters())


def test_what_two_steps_keep_together_is_counted_once() -> None:
    x = torch.ones(3000, requires_grad=True)
    with KeptBytes(CPU) as kept:
        (x * x + x.exp()).sum().backward()
    # x itself, and what the exponential returned; a third more passes through.
    assert kept.num_bytes == 2 * 3000 * 4 * 4 // 3


def test_trials_grow_until_they_can_be_measured() -> None:
    sizes = []

    def run(size: int) -> Trial:
        sizes.append(size)
        return Trial(size, {"work": 0.01 * size}, 1000 + 10 * size)

    found = try_sizes(CPU, run, 10_000)
    assert sizes == [1, 1, 4, 16, 64]
    assert 0.01 * 64 >= ENOUGH_S > 0.01 * 16
    # What does not grow with the size is counted once.
    assert found.seconds["work"] == pytest.approx(100.0)
    assert found.num_bytes == 1000 + 100_000
    sizes.clear()
    assert try_sizes(CPU, run, 6).num_bytes == 1060
    assert sizes == [1, 1, 4, 6]


def test_memory_that_does_not_suffice_is_told_with_the_keys_to_lower() -> None:
    needy = StagePlan(
        "train",
        {"tokens": 1_000_000, "steps": 61},
        {"the head": 4000.0, "the model": 1000.0},
        {"model": 2 * 10**9, "activations": 6 * 10**9},
        ("training.tokens_per_step", "training.num_depths"),
    )
    plan = TrainPlan("CPU", 4 * 10**9, 3600.0, (needy,))
    table = plan.table()
    assert "train needs about 8.0 GB, and there are 4.0 GB: lower training.tokens_per_step" in table
    assert "train: 80% of the time the head, 75% of the memory activations" in table
    assert "This call ends after 60 min" in table
    cells = table.splitlines()[2].split()
    assert cells == ["train", "–", "1,000,000", "61", "83", "min", "2.00", "6.00", "8.00"]
    plenty = TrainPlan("CPU", None, 86400.0, (needy,))
    assert plenty.notes() == []
    assert plan.to_dict()["stages"][0]["bytes_by"]["activations"] == 6 * 10**9
