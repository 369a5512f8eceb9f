"""A load in a terminal: nothing is cut off at 80 columns, intervals come with more room."""

from io import StringIO

from rich.console import Console

from headlong.bench.load_run import Level, LoadLog
from headlong.cli.bench_load_view import print_load
from load_parts import make_load_document, make_load_plan, make_log

PLAN = make_load_plan()


def show(log: LoadLog, width: int = 80, *, is_quiet: bool = False) -> str:
    """Return what is printed."""
    console = Console(file=StringIO(), width=width, markup=False, highlight=False)
    print_load(make_load_document(log, PLAN), console, is_quiet=is_quiet)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def seconds(mode: str, level: Level, name: str) -> float:
    """Auto takes half the time."""
    return 1.0 if mode == "off" else 0.5


def test_levels_modes_and_classes_fit_a_narrow_terminal() -> None:
    shown = show(make_log(PLAN, seconds))
    assert "…" not in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["1", "off", "16", "10.0", "100", "100", "100", "100", "1.00", "1.00", "0,", "0"] in rows
    assert ["4", "2.00", "[2.00–2.00]", "2.00", "2.00"] in rows


def test_every_class_has_its_interval_where_there_is_room() -> None:
    rows = [line.split() for line in show(make_log(PLAN, seconds), 120).splitlines()]
    assert ["4", *["2.00", "[2.00–2.00]"] * 3] in rows


def test_quiet_shows_the_verdict_and_what_went_wrong() -> None:
    log = make_log(PLAN, seconds)
    log.stopped = "the server no longer answers"
    shown = show(log, is_quiet=True)
    assert "Stopped early: the server no longer answers. 2 of 2 levels have answers." in shown
    assert "MTP auto answers faster than off with 1 at a time (2.00 ×" in shown
    assert "tok/s" not in shown


def test_nothing_measured_is_said() -> None:
    assert show(LoadLog()).strip() == "Nothing was measured."
