"""`headlong bench grid`: a real small grid, continued, stopped, and refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headlong.cli.main import main
from last_line import read_json

SMALL = ["--quant", "q8", "--temperature", "0", "--temperature", "0.9", "--max-tokens", "5"]


def test_default_model_fills_a_handful_of_cells(
    default_model_path: Path, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real thing, shortened: noise, chain, head and n-grams, same texts everywhere."""
    out = tmp_path / "grid"
    argv = ["bench", "grid", prompts, "-m", str(default_model_path), "--out", str(out)]
    argv += ["--task", "code", "--temperature", "0.7", "--quant", "q4", "--head-quant", "q8"]
    argv += ["--mtp", "off", "--mtp", "3", "--max-tokens", "8"]
    assert main([*argv, "--prompts-per-task", "1", "--json"]) == 0
    document = read_json(capsys)
    assert document["num_measured"] == document["num_planned"] == 1 + 3
    assert document["identical"] == {
        "all": True, "num_compared": 4, "num_identical": 4, "first_divergence": None,
    }  # fmt: skip
    drafted = [cell for cell in document["cells"] if cell["mtp"] == 3]
    assert {cell["drafter"] for cell in drafted} == {"chain", "head", "ngram"}
    assert all(cell["speedup"] > 0 for cell in document["cells"])
    assert next(c for c in drafted if c["drafter"] == "head")["num_drafted"] > 0
    assert json.loads((out / "results.json").read_text()) == document
    assert (out / "cells.jsonl").read_text().count("\n") == 4


def test_same_command_goes_on_where_it_was_cut(
    model: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "grid"
    argv = ["bench", "grid", prompts, "-m", model, *SMALL, "--out", str(out), "--json"]
    assert main([*argv, "--max-cells", "5"]) == 0
    first = read_json(capsys)
    assert first["num_measured"] == 5
    assert main([*argv, "--max-cells", "9"]) == 0
    shown = capsys.readouterr()
    second = json.loads(shown.out.splitlines()[-1])
    assert second["num_measured"] == 9
    assert second["cells"][:5] == first["cells"]
    assert "only n-grams are measured" in shown.err
    assert (out / "cells.jsonl").read_text().count("\n") == 9


def test_tables_and_finding_are_for_people(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "grid", prompts, "-m", model, *SMALL, "--max-cells", "20"]) == 0
    shown = capsys.readouterr().out
    for words in ("Drafter and K", "K=2", "backbone", "What decides the gain", "Auto was faster"):
        assert words in shown
    assert main(["bench", "grid", prompts, "-m", model, *SMALL, "--max-cells", "3", "-q"]) == 0
    shown_quiet = capsys.readouterr()
    assert len(shown_quiet.out.splitlines()) == 1
    assert shown_quiet.err == ""


def test_ctrl_c_keeps_finished_cells(
    model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    interrupt_after: Callable[[int], None],
) -> None:
    interrupt_after(10)
    out = tmp_path / "grid"
    assert main(["bench", "grid", prompts, "-m", model, *SMALL, "--out", str(out)]) == 130
    assert "Stopped early: stopped with Ctrl-C. 2 of 30 cells" in capsys.readouterr().out
    assert json.loads((out / "results.json").read_text())["num_measured"] == 2
    assert (out / "report.html").exists()


def test_time_budget_ends_early_and_well(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "grid", prompts, "-m", model, *SMALL, "--json", "--time-budget", "0.1s"]
    assert main(argv) == 0
    document = read_json(capsys)
    assert document["stopped"] == "the time budget of 0.1 s was used up"
    assert 0 < document["num_measured"] < 30


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--max-cells", "0"], "--max-cells is 0."),
        (["--prompts-per-task", "0"], "--prompts-per-task is 0."),
        (["--temperature", "-1"], "temperature is -1"),
        (["--mtp", "off"], "compares plain decoding with itself"),
        (["--task", "poems"], "There is no task 'poems'."),
        (["missing.txt"], "There is no prompt file missing.txt."),
    ],
)
def test_impossible_wishes_are_refused_before_anything_is_loaded(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "grid", *words]) == 1
    assert problem in capsys.readouterr().err


def test_drafter_that_needs_a_head_fails_where_there_is_none(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "grid", prompts, "-m", model, *SMALL, "--drafter", "chain", "--mtp", "2"]
    assert main([*argv, "--max-cells", "1"]) == 1
    assert "The model has no head, so drafter 'chain' cannot be measured" in capsys.readouterr().out


def test_tasks_without_room_in_the_context_are_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.txt"
    path.write_text("long " * 200)
    assert main(["bench", "grid", str(path), "-m", model, *SMALL]) == 1
    assert "No prompt of task p fits into the model's context." in capsys.readouterr().err
