"""How a load looks in a terminal: levels, gains by class, the verdict.

In:  the document that `headlong bench load` makes. Out: text for people; no number not in it.
"""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlong.cli.output import printable

_WIDE = 110
"""Columns of a terminal from which on every class has its interval."""

_STYLES = {"gain": "bold green", "loss": "bold red", "same": "", "unknown": "yellow"}


def print_load(document: Mapping[str, Any], console: Console, *, is_quiet: bool) -> None:
    """Print everything, or the verdict alone when quiet."""
    if not is_quiet and document["levels"]:
        console.print(_make_levels(document))
        if len(document["modes"]) > 1:
            console.print(_make_gains(document, is_wide=console.width >= _WIDE))
        for note in document["notes"]:
            console.print(printable(note), style="yellow", soft_wrap=True)
        cpu, setup = document["conditions"]["cpu"], document["setup"]
        text = f"{setup['model']} · {setup['url']} · asked from {cpu} · {document['token_counter']}"
        console.print(printable(text), style="dim", soft_wrap=True)
    if document["stopped"]:
        console.print(
            f"Stopped early: {printable(document['stopped'])}. {document['num_levels']} of "
            f"{document['num_planned']} levels have answers.",
            style="yellow",
            soft_wrap=True,
        )
    for failure in document["failures"][:3]:
        console.print(f"failed: {printable(failure['error'])}", style="red", soft_wrap=True)
    console.print(Text(printable(document["verdict"]), style="bold"), soft_wrap=True)


def _make_levels(document: Mapping[str, Any]) -> Table:
    """One row for each level and mode."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(_load_title(document), justify="right", no_wrap=True)
    table.add_column("\nmode", no_wrap=True)
    for title in (
        "answers", "tok/s\nall", "first token\np50  p95, ms", "pieces\np50  p95, ms",
        "answer\np50  p95, s", "busy,\nfailed",
    ):  # fmt: skip
        table.add_column(title if "\n" in title else f"\n{title}", justify="right", no_wrap=True)
    for level in document["levels"]:
        for mode, own in level["modes"].items():
            table.add_row(
                f"{level['value']:g}",
                mode,
                str(own["num_done"]),
                _number(own["tokens_per_second"], 1),
                _two(own, "ttft_{}_ms", 0),
                _two(own, "gap_{}_ms", 0),
                _two(own, "latency_{}_s", 2),
                f"{own['num_busy']}, {own['num_failed']}",
            )
    return table


def _make_gains(document: Mapping[str, Any], *, is_wide: bool) -> Table:
    """One row for each level, one column for each class."""
    table = Table(
        title="Speed-up of single answers [95 % interval]",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column(_load_title(document), justify="right", no_wrap=True)
    for name in ("all", *document["classes"]):
        table.add_column(f"\n{printable(name)}", justify="right", no_wrap=True)
    for level in document["levels"]:
        own = {one["task"]: one for one in level["classes"]}
        gains = [level["gain"], *(own.get(name) for name in document["classes"])]
        cells = [_gain(gain, is_wide or gain is level["gain"]) for gain in gains]
        table.add_row(f"{level['value']:g}", *cells)
    return table


def _load_title(document: Mapping[str, Any]) -> str:
    return "per\nsecond" if document["levels"][0]["is_open_loop"] else "at a\ntime"


def _gain(gain: Mapping[str, Any] | None, has_interval: bool) -> Text:
    if gain is None or gain["value"] is None:
        return Text("·", style="dim")
    low, high = gain["low"], gain["high"]
    interval = "" if low is None or not has_interval else f" [{low:.2f}–{high:.2f}]"
    return Text(f"{gain['value']:.2f}{interval}", style=_STYLES[gain["outcome"]])


def _two(own: Mapping[str, Any], name: str, digits: int) -> str:
    pair = (own[name.format(share)] for share in ("p50", "p95"))
    return "  ".join(_number(value, digits) for value in pair)


def _number(value: float | None, digits: int) -> str:
    return "·" if value is None else f"{value:.{digits}f}"
