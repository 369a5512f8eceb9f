"""How a grid looks in a terminal: maps, what decides the gain, the finding.

In:  the document that `headlong bench grid` makes. Out: text for people; no number not in it.
"""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlong.cli.output import printable

_FACTOR_WORDS = {"quant": "backbone", "head_quant": "head", "mtp": "K"}


def print_grid(document: Mapping[str, Any], console: Console, *, is_quiet: bool) -> None:
    """Print everything, or the finding alone when quiet."""
    if not is_quiet:
        for one in document["maps"]:
            console.print(_make_map(one))
        if document["precisions"]:
            console.print(_make_speeds(document["precisions"]))
        if document["effects"] is not None:
            console.print(_make_effects(document["effects"]))
    if document["stopped"]:
        console.print(
            f"Stopped early: {document['stopped']}. {document['num_measured']} of "
            f"{document['num_planned']} cells are measured; the same command with --out goes on.",
            style="yellow",
            soft_wrap=True,
        )
    if document["failures"]:
        first = document["failures"][0]
        console.print(
            printable(
                f"{len(document['failures'])} cells failed and are left out; the first: "
                f"{first['prompt']}: {first['error']}"
            ),
            style="red",
            soft_wrap=True,
        )
    style = "bold" if document["identical"]["all"] else "bold red"
    console.print(Text(printable(document["finding"]), style=style), soft_wrap=True)


def _make_map(one: Mapping[str, Any]) -> Table:
    """One heat map as a table: speed-ups, and acceptance lengths beside them."""
    table = Table(title=one["title"], title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(_factor(one["row_factor"]), no_wrap=True)
    is_k = one["column_factor"] == "mtp"
    for column in one["columns"]:
        title = f"K={column}" if is_k and column != "auto" else column
        table.add_column(title, justify="right", no_wrap=True)
    for name, cells in zip(one["rows"], one["cells"], strict=True):
        table.add_row(printable(name), *(_cell(cell) for cell in cells))
    return table


def _cell(cell: Mapping[str, Any] | None) -> Text:
    if cell is None:
        return Text("·", style="dim")
    # The same words as the numbers: what is shown as 1.00 is neither green nor red.
    shown = round(cell["speedup"], 2)
    style = "green" if shown > 1 else "red" if shown < 1 else ""
    text = Text(f"{cell['speedup']:.2f}", style=style)
    if cell["acceptance_length"] is not None:
        text.append(f" {cell['acceptance_length']:.1f}", style="dim")
    return text


def _make_speeds(precisions: Any) -> Table:
    table = Table(title="Tokens/s", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("backbone")
    for title in ("plain", "auto"):
        table.add_column(title, justify="right")
    for one in precisions:
        auto = one["auto_tokens_per_second"]
        shown = "·" if auto is None else f"{auto:.1f}"
        table.add_row(one["quant"], f"{one['plain_tokens_per_second']:.1f}", shown)
    return table


def _make_effects(effects: Mapping[str, Any]) -> Table:
    table = Table(
        title="What decides the gain",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("factor")
    table.add_column("share", justify="right")
    table.add_column("speed-up of each level, all else equal")
    for factor in effects["factors"]:
        levels = "  ".join(f"{one['level']}: {one['speedup']:.2f}" for one in factor["levels"])
        table.add_row(_factor(factor["factor"]), f"{factor['share']:.0%}", printable(levels))
    for name in effects["untold"]:
        table.add_row(_factor(name), "", "too few cells to tell")
    table.add_row("interplay, noise", f"{effects['unexplained']:.0%}", "")
    return table


def _factor(name: str) -> str:
    return _FACTOR_WORDS.get(name, name)
