"""What a terminal shows of a measurement, a grid and a load."""

import re
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from bench_parts import make_document, make_pairs
from grid_parts import make_grid_document, measure
from headlong.bench.grid_run import GridMeasured
from headlong.bench.load_run import LoadLevel, LoadLog
from headlong.cli.bench_view import print_grid, print_load, print_results
from load_parts import make_load_document, make_load_plan, make_log

ROWS = make_pairs({"translation": [2.1, 1.9, 2.0, 2.2], "stories": [0.9, 0.92, 0.88, 0.91]})
ROWS += make_pairs({"stories": [0.7, 0.8, 0.72, 0.75]}, temperature=0.9)


def show(document: dict[str, Any], width: int = 120, *, is_quiet: bool = False) -> str:
    output = StringIO()
    console = Console(file=output, width=width, highlight=False, markup=False)
    print_results(document, console, is_quiet=is_quiet)
    return output.getvalue()


def test_rows_are_tasks_and_everything_comes_last() -> None:
    shown = show(make_document(ROWS))
    lines = [line.split()[0] for line in shown.splitlines() if " × [" in line]
    assert lines[:4] == ["stories", "stories", "translation", "overall"]


def test_table_fits_eighty_columns() -> None:
    shown = show(make_document(ROWS), width=80)
    rows = [line for line in shown.splitlines() if re.search(r"× \[[\d.]+–[\d.]+\]", line)]
    assert len([row for row in rows if "yes" in row]) == 4
    assert "…" not in shown
    assert "translation at 0" in shown


def test_speedups_are_the_documents() -> None:
    document = make_document(ROWS)
    shown = show(document)
    for group in (*document["tasks"], document["overall"]):
        speedup = group["speedups"]["auto"]
        words = f"{speedup['value']:.2f} × [{speedup['low']:.2f}–{speedup['high']:.2f}]"
        assert words in shown


def test_quiet_leaves_the_verdict() -> None:
    document = make_document(ROWS)
    assert show(document, is_quiet=True).strip() == document["verdict"]


def test_what_went_wrong_is_said() -> None:
    rows = [replace(ROWS[0], error="\x1b[2Jbroke off"), *ROWS[1:]]
    divergence = {
        "prompt": "p:1", "temperature": 0.0, "candidate": "auto", "position": 3, "unit": "token",
        "baseline_text": "a", "candidate_text": "b",
    }  # fmt: skip
    rows[3] = replace(rows[3], tokens_hash="other")
    shown = show(make_document(rows, stopped="time ran out", divergence=divergence))
    assert "Stopped early: time ran out. 11 of 12 questions" in shown
    assert "1 answers failed and are left out; the first: �[2Jbroke off" in shown
    assert "auto parts at token 3: 'a' became 'b'." in shown
    assert "Do not enable it" in shown


def test_single_side_has_no_speedup() -> None:
    rows = [row for row in ROWS if row.side == "off"]
    shown = show(make_document(rows, sides={"off": "a server"}))
    assert "speed-up" not in shown
    assert "Recorded as a baseline" in shown


def test_nothing_measured_is_said() -> None:
    assert "Nothing was measured." in show(make_document([], stopped="stopped with Ctrl-C"))


def show_grid(measured: GridMeasured, *, is_quiet: bool = False) -> str:
    """Return what is printed on a narrow terminal."""
    console = Console(file=StringIO(), width=80, markup=False, highlight=False)
    print_grid(make_grid_document(measured), console, is_quiet=is_quiet)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_maps_show_speedups_and_acceptance() -> None:
    shown = show_grid(measure())
    assert "Task and K" in shown
    row = next(line for line in shown.splitlines() if line.split()[:2] == ["code", "1.65"])
    assert row.split() == ["code", "1.65", "2.5", "1.49", "2.5", "1.82", "2.5"]
    assert "…" not in shown.replace("1…", "")


def test_shares_and_speeds_are_shown() -> None:
    shown = show_grid(measure())
    assert "task                90%  chat: 1.22  code: 1.65  stories: 0.90" in shown
    assert [line.split() for line in shown.splitlines() if line.strip().startswith("q8  ")]
    assert shown.rstrip().splitlines()[-1].startswith("What decides the gain here: the task")


def test_failures_and_early_ends_are_said() -> None:
    records = list(measure().records)
    records[0] = records[0] | {"error": "It broke.", "speedup": None}
    shown = show_grid(GridMeasured(records[:9], "stopped with Ctrl-C"), is_quiet=True)
    assert "Stopped early: stopped with Ctrl-C. 8 of 112 cells" in shown
    assert "1 cells failed and are left out; the first: code at 0" in shown
    assert "It broke." in shown
    assert "Task and K" not in shown


PLAN = make_load_plan()


def show_load(log: LoadLog, width: int = 80, *, is_quiet: bool = False) -> str:
    """Return what is printed."""
    console = Console(file=StringIO(), width=width, markup=False, highlight=False)
    print_load(make_load_document(log, PLAN), console, is_quiet=is_quiet)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def seconds(mode: str, level: LoadLevel, name: str) -> float:
    """Auto takes half the time."""
    return 1.0 if mode == "off" else 0.5


def test_levels_modes_and_classes_fit_a_narrow_terminal() -> None:
    shown = show_load(make_log(PLAN, seconds))
    assert "…" not in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["1", "off", "16", "10.0", "100", "100", "100", "100", "1.00", "1.00", "0,", "0"] in rows
    assert ["4", "2.00", "[2.00–2.00]", "2.00", "2.00"] in rows


def test_every_class_has_its_interval_where_there_is_room() -> None:
    rows = [line.split() for line in show_load(make_log(PLAN, seconds), 120).splitlines()]
    assert ["4", *["2.00", "[2.00–2.00]"] * 3] in rows


def test_quiet_shows_the_verdict_and_what_went_wrong() -> None:
    log = make_log(PLAN, seconds)
    log.stopped = "the server no longer answers"
    shown = show_load(log, is_quiet=True)
    assert "Stopped early: the server no longer answers. 2 of 2 levels have answers." in shown
    assert "MTP auto answers faster than off with 1 at a time (2.00 ×" in shown
    assert "tok/s" not in shown


def test_nothing_measured_under_load_is_said() -> None:
    assert show_load(LoadLog()).strip() == "Nothing was measured."
