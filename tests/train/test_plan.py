"""Estimates of a run: amount of work, measured memory, recipe keys to lower."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headlong.train import trials
from headlong.train.batches import make_batch
from headlong.train.estimate import model_bytes
from headlong.train.pipeline import Pipeline
from headlong.train.plan import StagePlan, TrainPlan
from headlong.train.recipe import Recipe
from headlong.train.shards import read_shards
from headlong.train.trials import ENOUGH_S, ActivationMemory, Trial, extrapolate
from native_heads import write_talking_folder
from quiet_report import QuietReport
from train_parts import cpu_options

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
    """A run that has not started."""
    bench = tmp_path / "bench.jsonl"
    bench.write_text("\n".join(json.dumps({"prompt": f"tell {i}"}) for i in range(6)))
    options = cpu_options(tiny_gguf, tmp_path, prompt_file, bench_file=bench)
    return Pipeline(tiny_recipe, options, QuietReport())


def by_name(plan: TrainPlan) -> dict[str, StagePlan]:
    """The stages of a plan."""
    return {one.stage: one for one in plan.stages}


def test_the_amount_of_work_follows_the_recipe(pipeline: Pipeline, tiny_recipe: Recipe) -> None:
    stages = by_name(pipeline.plan(ALL))
    assert stages["generate"].work["tokens"] == tiny_recipe.answers.tokens_wanted
    assert stages["train"].work["steps"] == tiny_recipe.training.steps
    # Four of the six prompts, which are of one task, at two temperatures.
    assert stages["evaluate"].work["answers"] == 8
    assert all(one.total_seconds > 0 for one in stages.values())


def test_completed_work_is_not_estimated_again(pipeline: Pipeline, tiny_recipe: Recipe) -> None:
    training = replace(tiny_recipe.training, steps=20)
    pipeline.recipe = replace(tiny_recipe, training=training)
    pipeline.run(["generate", "train"])
    training = replace(training, steps=None, seconds=7.0)
    answers = replace(tiny_recipe.answers, tokens_wanted=1000)
    pipeline.recipe = replace(tiny_recipe, training=training, answers=answers)
    stages = by_name(pipeline.plan(ALL))
    num_tokens = read_shards(pipeline.options.work / "answers").num_answer_tokens
    assert stages["generate"].work["tokens"] == 1000 - num_tokens
    assert stages["train"].work["steps"] == 0


def test_more_rows_than_answers_still_need_the_steps_of_one_answer(
    pipeline: Pipeline, tiny_recipe: Recipe
) -> None:
    answers = replace(tiny_recipe.answers, tokens_wanted=16, max_tokens=24)
    pipeline.recipe = replace(tiny_recipe, answers=answers)
    work = by_name(pipeline.plan(["generate"]))["generate"].work
    assert (work["answers"], work["steps"]) == (1, 15)


def test_recorded_states_take_disk_and_spare_the_forward_pass(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pipeline.plan(["generate", "train"])
    generate, train = plan.stages
    assert train.seconds["the model's forward pass"] == 0
    # At least the answers' own rows, each with the normed state and three taps in two bytes.
    row_bytes = 2 * 4 * pipeline.teacher.config.hidden_size
    assert generate.disk_bytes > generate.work["tokens"] * row_bytes
    assert "of hidden states to the work folder" in plan.table()
    pipeline.generate()
    recorded = sorted((pipeline.options.work / "answers").glob("*.states"))
    recorded[0].unlink()  # of all answers: they are generated within a second
    assert pipeline.plan(["train"]).stages[0].seconds["the model's forward pass"] > 0
    monkeypatch.setattr(pipeline._rows, "uses_engine", False)
    generate, train = pipeline.plan(["generate", "train"]).stages
    assert generate.disk_bytes == 0
    assert train.seconds["the model's forward pass"] > 0


def test_a_schedule_in_seconds_is_the_estimate(pipeline: Pipeline, tiny_recipe: Recipe) -> None:
    training = replace(tiny_recipe.training, steps=None, seconds=30.0)
    pipeline.recipe = replace(tiny_recipe, training=training)
    train = by_name(pipeline.plan(["train"]))["train"]
    assert train.total_seconds == pytest.approx(30.0, rel=0.3)
    assert train.work["steps"] > 0


def test_memory_includes_a_step_and_the_caches(
    pipeline: Pipeline, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENOUGH_S", "_TOO_LONG_S"):  # trials up to the full size, also on a busy machine
        monkeypatch.setattr(trials, name, 1e9)
    stages = by_name(pipeline.plan(ALL))
    trainer = pipeline._new_trainer(np.arange(128))
    num_weights = sum(one.numel() for one in trainer.head.parameters())
    train = stages["train"].num_bytes
    assert (train["head"], train["optimiser"]) == (4 * num_weights, 12 * num_weights)
    assert train["model"] == model_bytes(pipeline.teacher)
    sampler = pipeline._rows.sampler(4, 96 + 24)  # one for each prompt to evaluate on
    logits = 3 * 4 * 4 * pipeline.teacher.config.vocab_size
    assert stages["evaluate"].num_bytes["caches"] == sampler.num_bytes + logits
    assert stages["generate"].num_bytes["caches"] > 0

    length = stages["train"].work["tokens"] // stages["train"].work["steps"] // 8
    assert 8 * length == tiny_recipe.training.tokens_per_step == 512
    ids = list(np.random.default_rng(0).integers(0, 266, (8, length)))
    batch = make_batch(ids, [20] * 8, np.zeros(8, np.float32), length)
    with ActivationMemory(CPU) as memory:
        trainer.run_step(batch)
    assert train["activations"] == pytest.approx(memory.num_bytes, rel=0.25)


def test_planning_does_not_change_the_run(
    tiny_gguf: Path, tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path
) -> None:
    recipe = replace(tiny_recipe, training=replace(tiny_recipe.training, steps=6))
    states = []
    for name, is_planned in (("plain", False), ("planned", True)):
        work = tmp_path / name
        options = replace(cpu_options(tiny_gguf, work, prompt_file), work=work)
        pipeline = Pipeline(recipe, options, QuietReport())
        if is_planned:
            pipeline.plan(["generate", "train"])
            assert not list(work.glob("*"))
        pipeline.run(["generate", "train"])
        states.append(torch.load(work / "training.pt", weights_only=True)["head"])
    for name, values in states[0].items():
        assert torch.equal(values, states[1][name]), name


def test_a_native_layer_is_estimated_too(
    tiny_recipe: Recipe, prompt_file: Path, tmp_path: Path
) -> None:
    model = write_talking_folder(tmp_path / "model")
    options = cpu_options(model, tmp_path, prompt_file, from_native=True)
    pipeline = Pipeline(tiny_recipe, options, QuietReport())
    train = by_name(pipeline.plan(["train"]))["train"]
    trainer = pipeline._new_trainer(np.arange(128))
    assert train.num_bytes["head"] == 4 * sum(one.numel() for one in trainer.head.parameters())


def test_a_tensor_saved_twice_is_counted_once() -> None:
    x = torch.ones(3000, requires_grad=True)
    with ActivationMemory(CPU) as memory:
        (x * x + x.exp()).sum().backward()
    # Saved are x itself and the result of exp; the factor adds a third.
    assert memory.num_bytes == 2 * 3000 * 4 * 4 // 3


def test_trials_grow_until_they_can_be_measured() -> None:
    sizes = []

    def run(size: int) -> Trial:
        sizes.append(size)
        return Trial(size, {"work": 0.01 * size}, 1000 + 10 * size, {"update": 5.0})

    found = extrapolate(run, 10_000, compiles=False)
    assert sizes == [1, 1, 4, 16, 64]
    assert 0.01 * 64 >= ENOUGH_S > 0.01 * 16
    # The constant part of the memory is not scaled.
    assert found.seconds["work"] == pytest.approx(100.0)
    # Nor is the constant part of the time, which does not end the trials either.
    assert found.fixed_seconds == {"update": 5.0}
    assert found.num_bytes == 1000 + 100_000
    sizes.clear()
    assert extrapolate(run, 6, compiles=False).num_bytes == 1060
    assert sizes == [1, 1, 4, 6]
    sizes.clear()
    extrapolate(run, 6, compiles=True)
    assert sizes == [1, 1, 4, 4, 6, 6]  # the first of each may have compiled something


def test_too_little_memory_is_reported_with_the_keys_to_lower() -> None:
    needy = StagePlan(
        "train",
        {"tokens": 1_000_000, "steps": 61},
        {"the head's forward and backward pass": 4000.0, "the model's forward pass": 1000.0},
        {"model": 2 * 10**9, "activations": 6 * 10**9},
        ("training.tokens_per_step", "training.num_depths"),
    )
    plan = TrainPlan("CPU", 4 * 10**9, 3600.0, (needy,))
    table = plan.table()
    assert "train needs about 8.0 GB, and 4.0 GB are available: lower training.tokens_per" in table
    assert "train: 80% of the time for the head's forward and backward pass, 75%" in table
    assert "This call ends after 60 min" in table
    assert "75% of the memory for activations" in table
    cells = table.splitlines()[2].split()
    assert cells == ["train", "–", "1,000,000", "61", "83", "min", "2.00", "6.00", "8.00"]
    plenty = TrainPlan("CPU", None, 86400.0, (needy,))
    assert plenty.notes() == []
    assert plan.to_dict()["stages"][0]["bytes_by"]["activations"] == 6 * 10**9
