"""`headlong train` and `headlong eval-head` from the command line, on a tiny model."""

import argparse
import json
import os
import sys
from pathlib import Path

import pytest

import model_files
from headlong.cli import eval_head, train
from headlong.errors import RequestError
from tiny_text import byte_level_metadata

SETTINGS = (
    "prompts.max_tokens=96",
    "prompts.passage_share=0.0",
    "answers.num_rows=8",
    "answers.max_tokens=16",
    "answers.tokens_wanted=300",
    "head.draft_vocab_size=100",
    "training.steps=10",
    "training.num_depths=2",
    "evaluation.max_depth=2",
    "evaluation.max_tokens=12",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a prompt file, and another one to evaluate on."""
    folder = tmp_path_factory.mktemp("train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_files.NUM_LAYERS, "llama", 7)
        patch.setattr(model_files, "VOCAB_SIZE", 266)
        model_files.write_gguf(folder / "tiny.gguf", "llama", extra_metadata=byte_level_metadata())
    lines = [{"prompt": "hello", "task": "chat"}, {"prompt": "12 + 12", "task": "maths"}]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    judged = [{"prompt": "hell", "task": "chat"}, {"prompt": "12 + 13", "task": "maths"}]
    (folder / "bench.jsonl").write_text("\n".join(map(json.dumps, judged)))
    return folder


def run_train(folder: Path, *more: str) -> int:
    """Run the verb."""
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    prompts, bench = (str(folder / f"{name}.jsonl") for name in ("prompts", "bench"))
    changes = [word for setting in SETTINGS for word in ("--set", setting)]
    common = ["-m", str(folder / "tiny.gguf"), "--prompts", prompts, "--bench", bench]
    places = ["--work", str(folder / "work"), "--out", str(folder / "head"), "--device", "cpu"]
    return train.run(parser.parse_args([*common, *places, *changes, *more]))


def run_eval(folder: Path, *more: str) -> int:
    """Run the verb."""
    parser = argparse.ArgumentParser()
    eval_head.add_arguments(parser)
    model, prompts = str(folder / "tiny.gguf"), str(folder / "prompts.jsonl")
    words = ["-m", model, "--prompts", prompts, "--max-tokens", "12", "--backend", "numpy"]
    return eval_head.run(parser.parse_args([*words, *more]))


def test_a_head_is_trained_and_evaluated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(folder, "--split", "--no-plot") == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(last["temperature_0"]) == {"chat", "maths"}
    joined = b"".join(
        part.read_bytes() for part in sorted((folder / "head").glob("model.safetensors.part*"))
    )
    assert joined == (folder / "head" / "model.safetensors").read_bytes()

    head = str(folder / "head")
    settings = ["-k", "1", "-k", "2", "--temperature", "0", "--precision", "f16"]
    assert run_eval(folder, "--head", head, *settings, "--precision", "q8") == 0
    out = capsys.readouterr().out
    assert "acceptance length" in out
    document = json.loads(out.splitlines()[-1])
    assert (document["model"], document["backend"]) == ("tiny.gguf", "numpy")
    assert document["head"].startswith(f"{Path(head).name} (")  # no path: results travel
    results = document["results"]
    assert [(r["precision"], r["k"]) for r in results] == [
        ("f16", 1),
        ("f16", 2),
        ("q8", 1),
        ("q8", 2),
    ]
    assert all(r["tasks"]["chat"]["rounds"] > 0 for r in results)
    # K is drafted to the letter: only where an answer ends are there fewer.
    drafted = [r["tasks"]["chat"]["k_histogram"] for r in results if r["k"] == 2]
    assert all(counts["2"] > sum(counts.values()) / 2 for counts in drafted)


def test_training_needs_neither_rich_nor_the_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it runs on minimal GPU machines."""
    for name in ("rich", "rich.console", "platformdirs", "huggingface_hub", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run_train(folder, "--stage", "generate") == 0


def test_results_are_printed_even_if_drawing_fails(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    if not (folder / "head").exists():
        run_train(folder, "--no-plot")
    capsys.readouterr()

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("headlong.cli.train_plot.draw_acceptance", fail)
    plot = str(folder / "plots" / "a.png")
    settings = ["--head", str(folder / "head"), "-k", "1", "--temperature", "0", "--plot", plot]
    with pytest.raises(RequestError, match="the disk is full"):
        run_eval(folder, *settings, "--json")
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)["results"]) == 1
    assert "acceptance length" in shown.err


@pytest.mark.parametrize("name", ["a.xyz", "a", "prompts.jsonl/a.png", "taken.png"])
def test_impossible_plots_are_refused_before_anything_is_measured(folder: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    (folder / "taken.png").mkdir(exist_ok=True)
    with pytest.raises(RequestError, match="--plot"):
        run_eval(folder, "--head", "nowhere", "--plot", str(folder / name))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--per-task", "0"], "--per-task is 0"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--prompts", os.devnull], "has no prompts"),
    ],
)
def test_impossible_evaluations_are_refused(folder: Path, options: list[str], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        run_eval(folder, "--head", "nowhere", *options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "--prompts was not given"),
        (["--prompts", "nowhere.jsonl"], "no prompt file nowhere.jsonl"),
        (["--stage", "evaluate"], "--bench was not given"),
    ],
)
def test_missing_prompts_are_told_before_torch_is_loaded(
    options: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headlong.train.pipeline", None)
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    with pytest.raises(RequestError, match=problem):
        train.run(parser.parse_args(options))


def test_json_is_all_training_writes_to_standard_output(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_train(folder, "--stage", "generate", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["stages"] == ["generate"]
    assert "tiny.gguf on CPU" in shown.err


def test_the_draft_length_is_bounded(folder: Path) -> None:
    with pytest.raises(RequestError, match="99"):
        run_eval(folder, "-k", "99")


def test_plan_only_prints_the_plan_and_runs_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "head")]
    assert run_train(folder, *places, "--plan-only") == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("estimated time and memory on CPU") for line in shown)
    plan = json.loads(shown[-1])["plan"]
    assert [one["stage"] for one in plan["stages"]] == ["generate", "train", "evaluate"]
    assert plan["stages"][1]["steps"] == 10
    assert not list(tmp_path.glob("*/*"))


def test_the_plan_is_part_of_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_train(folder, "--stage", "generate", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["plan"]["stages"][0]["bytes_by"]["caches"] > 0
    assert "estimated time and memory" in shown.err
