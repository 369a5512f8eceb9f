"""`headlong bench`: from prompts to verdict in this process, also when it is cut short."""

import csv
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headlong.bench import local_side
from headlong.bench.measure import Question, TimedAnswer
from headlong.cli.bench import parse_duration
from headlong.cli.main import main
from last_line import read_json


def test_default_model_is_measured_for_real(
    default_model_path: Path, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real thing, shortened: texts are the same, every file is there."""
    out = tmp_path / "out"
    argv = ["bench", prompts, "-m", str(default_model_path), "--max-tokens", "8", "--out", str(out)]
    assert main([*argv, "--json"]) == 0
    document = read_json(capsys)
    assert document["identical"]["all"] is True
    assert document["identical"]["num_compared"] == 5
    assert document["speedup"] > 0
    assert len(document["speedup_interval"]) == 2
    assert set(document["p95"]) == {"off", "auto"}
    assert document["verdict"]
    assert document["setup"]["model"] == default_model_path.name
    assert document["conditions"]["versions"]["numpy"]
    assert document == json.loads((out / "results.json").read_text())
    with (out / "runs.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 10
    assert document["verdict"] in (out / "report.html").read_text()


def test_table_and_verdict_are_for_people(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", prompts, "-m", model, "--backend", "numpy", "--max-tokens", "6"]) == 0
    shown = capsys.readouterr().out
    for words in ("speed-up", "chat", "code", "overall", "tiny.gguf", "prompts.jsonl"):
        assert words in shown
    assert not shown.splitlines()[-1].startswith("{")


def test_several_modes_and_temperatures_are_compared(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", prompts, "-m", model, "--max-tokens", "5", "--runs", "2", "--json", "--quiet"]
    modes = ["--mtp", "1", "--mtp", "3", "--temperature", "0", "--temperature", "0.8"]
    assert main([*argv, *modes]) == 0
    document = read_json(capsys)
    assert [side["name"] for side in document["sides"]] == ["off", "1", "3"]
    assert len(document["runs"]) == 5 * 2 * 2 * 3
    assert [group["name"] for group in document["tasks"]] == [
        "chat at 0", "chat at 0.8", "code at 0", "code at 0.8",
    ]  # fmt: skip
    assert document["identical"] == {
        "all": True, "num_compared": 40, "num_identical": 40, "first_divergence": None,
    }  # fmt: skip


def test_quiet_prints_the_verdict_alone(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", prompts, "-m", model, "--max-tokens", "4", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1
    assert shown.err == ""


def test_prompts_over_the_context_are_skipped_with_both_numbers(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.txt"
    path.write_text("short\n" + "long " * 200 + "\n")
    assert main(["bench", str(path), "-m", model, "--max-tokens", "4", "--json"]) == 0
    shown = capsys.readouterr()
    (line,) = json.loads(shown.out)["prompts"]["skipped"]
    assert f"{path}:2 has 1," in line
    assert "the model's context holds 512." in line
    assert f"skipped: {path}:2" in shown.err


def test_only_over_long_prompts_are_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.txt"
    path.write_text("long " * 200)
    assert main(["bench", str(path), "-m", model]) == 1
    assert "All prompts are too long for the model: " in capsys.readouterr().err


def test_texts_that_differ_are_shouted_and_fail(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench is a test of exactness on the user's own prompts; it must not hide a failure."""
    truth = local_side.LocalSide.answer

    def break_the_law(self: local_side.LocalSide, question: Question) -> TimedAnswer:
        answer = truth(self, question)
        if self.mtp == "off":
            return answer
        return replace(answer, token_ids=(*(answer.token_ids or ())[:3], 9999), text="lies")

    monkeypatch.setattr(local_side.LocalSide, "answer", break_the_law)
    assert main(["bench", prompts, "-m", model, "--max-tokens", "6", "--json"]) == 1
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["verdict"].startswith("Do not enable it: 5 of 5 texts differ")
    assert document["identical"]["first_divergence"]["position"] == 4
    assert "auto parts at token 4" in shown.err
    assert document["recommended"] is None


def test_ctrl_c_keeps_and_writes_what_was_measured(
    model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    interrupt_after: Callable[[int], None],
) -> None:
    interrupt_after(5)
    out = tmp_path / "out"
    argv = ["bench", prompts, "-m", model, "--max-tokens", "4", "--out", str(out), "--json"]
    assert main(argv) == 130
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["stopped"] == "stopped with Ctrl-C"
    assert document["num_answered"] == 2
    assert len(document["runs"]) == 5
    assert json.loads((out / "results.json").read_text()) == document
    assert "Stopped early: stopped with Ctrl-C. 2 of 5 questions" in shown.err


def test_interruption_before_the_first_answer_leaves_the_folder_free(
    model: str,
    prompts: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Results of nothing would turn away the same command, given again."""

    def interrupt(side: local_side.LocalSide, question: Question) -> None:
        raise KeyboardInterrupt

    argv = ["bench", prompts, "-m", model, "--max-tokens", "4", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(local_side.LocalSide, "warm_up", interrupt)
        assert main(argv) == 130
    shown = capsys.readouterr().out
    assert "Nothing was measured." in shown
    assert "Report:" not in shown
    assert main(argv) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["num_answered"] == 5


def test_signal_in_the_middle_of_a_run_keeps_results(
    model: str, prompts: str, tmp_path: Path
) -> None:
    """Ctrl-C as the terminal sends it, while the engine computes."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "headlong", "bench", prompts, "-m", model, "--runs", "9999"]
    process = subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (out / "runs.csv").exists() and (out / "runs.csv").read_text().count("\n") > 4:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    document = json.loads((out / "results.json").read_text())
    assert document["stopped"] == "stopped with Ctrl-C"
    assert document["num_answered"] >= 1
    assert (out / "report.html").exists()


def test_time_budget_ends_early_and_well(
    model: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", prompts, "-m", model, "--max-tokens", "4", "--runs", "500", "--json"]
    assert main([*argv, "--time-budget", "0.3s"]) == 0
    document = read_json(capsys)
    assert document["stopped"] == "the time budget of 0.3 s was used up"
    assert 0 < document["num_answered"] < 2500


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--runs", "0"], "--runs is 0."),
        (["--max-tokens", "0"], "--max-tokens is 0."),
        (["--temperature", "-1"], "temperature is -1"),
        (["--mtp", "off"], "--mtp off is the baseline anyway."),
        (["--mtp", "99"], "mtp is 99"),
        (["--url", "http://h", "--mtp", "4"], "--mtp was given with --url"),
        (["--url", "a", "--url", "b", "--url", "c"], "--url was given 3 times."),
        (["--body-a", "{}", "--tokenizer", "x"], "without --url"),
        (["missing.txt"], "There is no prompt file missing.txt."),
    ],
)
def test_impossible_wishes_are_refused_before_anything_is_loaded(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--body-a", "{"], ["--body-b", "3"], ["--time-budget", "soon"]])
def test_words_that_cannot_be_read_are_usage_errors(words: list[str]) -> None:
    assert main(["bench", "--url", "h", *words]) == 2


def test_model_without_a_drafter_has_nothing_to_compare(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "-m", model, "--drafter", "none"]) == 1
    assert "loaded without a drafter" in capsys.readouterr().err


def test_older_results_are_not_overwritten(
    model: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text("{}")
    assert main(["bench", prompts, "-m", model, "--out", str(tmp_path)]) == 1
    assert "already holds a measurement" in capsys.readouterr().err


def test_durations_have_units() -> None:
    assert [parse_duration(text) for text in ("90", "90s", "5m", "1.5h")] == [90, 90, 300, 5400]


@pytest.mark.parametrize("verb", [["bench"], ["bench", "load", "http://127.0.0.1:9"]])
@pytest.mark.parametrize("timeout", ["0", "-5", "nan"])
def test_impossible_timeouts_are_refused(
    verb: list[str], timeout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """httpx would break on them later, and it would look like a bug of ours."""
    assert main([*verb, f"--timeout={timeout}"]) == 2
    assert "is no time; write 90, 90s, 5m or 1h" in capsys.readouterr().err
