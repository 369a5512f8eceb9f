"""A grid in a terminal: nothing is cut off, colours say what the numbers say."""

from io import StringIO

from rich.console import Console

from grid_parts import make_grid_document, measure
from headlong.bench.grid_run import GridMeasured
from headlong.cli.bench_grid_view import print_grid


def show(measured: GridMeasured, *, is_quiet: bool = False) -> str:
    """Return what is printed on a narrow terminal."""
    console = Console(file=StringIO(), width=80, markup=False, highlight=False)
    print_grid(make_grid_document(measured), console, is_quiet=is_quiet)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_maps_show_speedups_and_acceptance() -> None:
    shown = show(measure())
    assert "Task and K" in shown
    row = next(line for line in shown.splitlines() if line.split()[:2] == ["code", "1.65"])
    assert row.split() == ["code", "1.65", "2.5", "1.49", "2.5", "1.82", "2.5"]
    assert "…" not in shown.replace("1…", "")


def test_shares_and_speeds_are_shown() -> None:
    shown = show(measure())
    assert "task                90%  chat: 1.22  code: 1.65  stories: 0.90" in shown
    assert [line.split() for line in shown.splitlines() if line.strip().startswith("q8  ")]
    assert shown.rstrip().splitlines()[-1].startswith("What decides the gain here: the task")


def test_failures_and_early_ends_are_said() -> None:
    records = list(measure().records)
    records[0] = records[0] | {"error": "It broke.", "speedup": None}
    shown = show(GridMeasured(records[:9], "stopped with Ctrl-C"), is_quiet=True)
    assert "Stopped early: stopped with Ctrl-C. 8 of 112 cells" in shown
    assert "1 cells failed and are left out; the first: code at 0" in shown
    assert "It broke." in shown
    assert "Task and K" not in shown
