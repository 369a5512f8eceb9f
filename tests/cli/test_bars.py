"""Bars: time left from the pace so far, failures at once, silence when quiet."""

import time

import pytest

from bench_parts import FakeClock, make_answer, make_prompt, make_question, make_run
from headlong.cli.bars import BenchBar, ProgressBar, format_duration

QUESTION = make_question(make_prompt(1))


def test_time_left_follows_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock)
    with BenchBar(10, is_quiet=True) as bar, BenchBar(10, 9.0, is_quiet=True) as hurried:
        for _ in range(2):
            clock.advance(3.0)
            bar.advance(make_run("off", QUESTION, make_answer()))
            hurried.advance(make_run("off", QUESTION, make_answer()))
        assert bar.time_left_s() == pytest.approx(24.0)
        assert hurried.time_left_s() == pytest.approx(3.0)  # its budget is nearly used up


def test_lines_come_now_and_then_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock)
    with BenchBar(10) as bar:
        for _ in range(4):
            clock.advance(10.0)
            bar.advance(make_run("off", QUESTION, make_answer()))
    assert capsys.readouterr().err.splitlines() == [
        "2 of 10 answers, 1:20 left",
        "4 of 10 answers, 1:00 left",
    ]


def test_failures_are_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with BenchBar(2) as bar:
        bar.advance(make_run("B", QUESTION, None, "broke off"))
    assert "failed: code:1 on B: broke off" in capsys.readouterr().err


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with BenchBar(2, is_quiet=True) as bar:
        bar.advance(make_run("B", QUESTION, None, "broke off"))
    assert capsys.readouterr().err == ""


def test_durations_are_minutes_and_hours() -> None:
    assert [format_duration(s) for s in (0.4, 42, 725, 3723)] == [
        "0:00",
        "0:42",
        "12:05",
        "1:02:03",
    ]


def test_no_terminal_gets_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as bar:
        bar.begin("some-model", 92_871_040, 0)
        bar.update(1_000)
        bar.note("waiting [for] it")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "pulling some-model (92.9 MB)\nwaiting [for] it\n"


def test_terminal_gets_a_bar_with_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    with ProgressBar() as bar:
        bar.begin("some-model", 2_000_000, 500_000)
        bar.update(1_000_000)
    assert "1.0/2.0 MB" in capsys.readouterr().err


def test_model_that_is_here_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar():
        pass
    assert capsys.readouterr().err == ""
