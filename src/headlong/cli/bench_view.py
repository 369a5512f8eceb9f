"""How a measurement, a grid and a load look in a terminal: tables, notes, the words at the end.

In:  the document that a verb of `headlong bench` makes. Out: text for people; no number that is not
in the document.
"""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlong.cli.output import printable

_WIDE, _WIDE_LOAD = 100, 110
"""Columns of a terminal from which on the tables have everything."""

_STYLES = {"gain": "bold green", "loss": "bold red", "same": "", "unknown": "yellow"}
_FACTOR_WORDS = {"quant": "backbone", "head_quant": "head", "mtp": "K"}

Document = Mapping[str, Any]


def print_results(document: Document, console: Console, *, is_quiet: bool) -> None:
    """Print a measurement, or the verdict alone when quiet."""
    if not is_quiet and document["overall"] is not None:
        console.print(_make_results(document, is_wide=console.width >= _WIDE))
        _print_notes(document, console)
    _print_stop(
        document,
        console,
        f"{document['num_answered']} of {document['num_planned']} questions were answered by all "
        "sides and count.",
    )
    if document["failures"]:
        first = document["failures"][0]["error"]
        num_failed = len(document["failures"])
        _say(f"{num_failed} answers failed and are left out; the first: {first}", "red", console)
    _print_divergence(document, console)
    candidate = document.get("candidate")
    outcome = "" if candidate is None else document["overall"]["speedups"][candidate]["outcome"]
    is_trusted = document["recommended"] is not None or candidate is None
    _say(document["verdict"], _STYLES.get(outcome, "bold") if is_trusted else "bold red", console)


def print_grid(document: Document, console: Console, *, is_quiet: bool) -> None:
    """Print a grid, or the finding alone when quiet."""
    if not is_quiet:
        for one in document["maps"]:
            console.print(_make_map(one))
        if document["precisions"]:
            console.print(_make_speeds(document["precisions"]))
        if document["effects"] is not None:
            console.print(_make_effects(document["effects"]))
    _print_stop(
        document,
        console,
        f"{document['num_measured']} of {document['num_planned']} cells are measured; the same "
        "command with --out goes on.",
    )
    if document["failures"]:
        first, num_failed = document["failures"][0], len(document["failures"])
        why = f"{first['prompt']}: {first['error']}"
        _say(f"{num_failed} cells failed and are left out; the first: {why}", "red", console)
    _say(document["finding"], "bold" if document["identical"]["all"] else "bold red", console)


def print_load(document: Document, console: Console, *, is_quiet: bool) -> None:
    """Print a load, or the verdict alone when quiet."""
    if not is_quiet and document["levels"]:
        console.print(_make_levels(document))
        if len(document["modes"]) > 1:
            console.print(_make_gains(document, is_wide=console.width >= _WIDE_LOAD))
        for note in document["notes"]:
            _say(note, "yellow", console)
        cpu, setup = document["conditions"]["cpu"], document["setup"]
        text = f"{setup['model']} · {setup['url']} · asked from {cpu} · {document['token_counter']}"
        _say(text, "dim", console)
    counts = f"{document['num_levels']} of {document['num_planned']} levels have answers."
    _print_stop(document, console, counts)
    for failure in document["failures"][:3]:
        _say(f"failed: {failure['error']}", "red", console)
    _say(document["verdict"], "bold", console)


def _say(text: str, style: str, console: Console) -> None:
    console.print(Text(printable(text), style=style), soft_wrap=True)


def _print_stop(document: Document, console: Console, counts: str) -> None:
    if document["stopped"]:
        _say(f"Stopped early: {document['stopped']}. {counts}", "yellow", console)


def _make_table(*titles: str, title: str | None = None) -> Table:
    """Return a table whose first column is to the left; titles stand at the bottom line."""
    is_tall = any("\n" in one for one in titles)
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for number, one in enumerate(titles):
        shown = one if "\n" in one or not is_tall else f"\n{one}"
        table.add_column(shown, justify="right" if number else "left", no_wrap=True)
    return table


def _make_results(document: Document, *, is_wide: bool) -> Table:
    """One row for each task and candidate; for a single side one row a task."""
    baseline, *candidates = [side["name"] for side in document["sides"]]
    titles = ["\ntask", *(["prompts"] if is_wide else []), f"tok/s\n{baseline}"]
    if candidates:
        titles += [f"tok/s\n{candidates[0]}"] if len(candidates) == 1 else ["side", "tok/s"]
        titles += ["speed-up\n[95 % interval]"]
    titles += ["accept.\nlength"]
    titles += ["first\ntoken, ms", "p95\nlatency, s"] if is_wide else []
    table = _make_table(*titles, *(["same\ntext"] if candidates else []))
    for group in (*document["tasks"], document["overall"]):
        is_overall = group["task"] is None
        if is_overall:
            table.add_section()
        for candidate in candidates or [None]:
            cells = _cells(group, baseline, candidate, is_wide=is_wide)
            table.add_row(*cells, style="bold" if is_overall else None)
    return table


def _cells(
    group: Mapping[str, Any], baseline: str, candidate: str | None, *, is_wide: bool
) -> list[str | Text]:
    plain, own = group["sides"][baseline], group["sides"][candidate or baseline]
    cells: list[str | Text] = [group["name"]]
    cells += [str(group["num_prompts"])] if is_wide else []
    cells += [f"{plain['tokens_per_second']:.1f}"]
    if candidate is not None:
        cells += [candidate] if len(group["speedups"]) > 1 else []
        cells += [f"{own['tokens_per_second']:.1f}"]
        cells += [_gain(group["speedups"][candidate], unknown="–", mark=" ×")]
    accepted = own["acceptance"]
    cells += ["–" if accepted is None else f"{accepted['acceptance_length']:.2f}"]
    if is_wide:
        cells += [_both(plain, own, "ttft_p50_ms", 0), _both(plain, own, "latency_p95_s", 2)]
    if candidate is not None:
        cells += [_same_text(group["speedups"][candidate])]
    return cells


def _both(plain: Mapping[str, Any], own: Mapping[str, Any], name: str, digits: int) -> str:
    sides = [own] if plain is own else [plain, own]
    return " → ".join(f"{side[name]:.{digits}f}" for side in sides)


def _gain(
    gain: Mapping[str, Any] | None, *, unknown: str = "·", mark: str = "", has_interval: bool = True
) -> Text:
    """Write a speed-up with its interval, coloured by what may be said of it."""
    if gain is None or gain["value"] is None:
        return Text(unknown, style="dim")
    low, high = gain["low"], gain["high"]
    interval = "" if low is None else f" [{low:.2f}–{high:.2f}]"
    if low is None and mark:
        interval = " [1 prompt]"
    shown = interval if has_interval else ""
    return Text(f"{gain['value']:.2f}{mark}{shown}", style=_STYLES[gain["outcome"]])


def _same_text(speedup: Mapping[str, Any]) -> Text:
    same, compared = speedup["num_identical"], speedup["num_compared"]
    if same == compared:
        return Text("yes", style="green")
    return Text(f"{same} of {compared}", style="yellow")


def _print_notes(document: Document, console: Console) -> None:
    """Say what the numbers mean and where they were measured."""
    for note in document["notes"]:
        _say(note, "yellow", console)
    for name, side in document["overall"]["sides"].items():
        share = side["prefill_head_share"]
        drafter = f", {share:.1%} of the time for prompts is the drafter's" if share else ""
        text = (
            f"{name}: first token after {side['ttft_p50_ms']:.0f} ms (median), answers after "
            f"{side['latency_p50_s']:.2f} s (median) and {side['latency_p95_s']:.2f} s "
            f"(p95){drafter}"
        )
        _say(text, "", console)
    conditions, setup = document["conditions"], document["setup"]
    facts = [setup.get("model"), setup.get("drafter"), setup.get("backend_note")]
    facts += [f"{document['prompts']['source']} (hash {document['prompts']['hash']})"]
    facts += [f"{conditions['cpu']}, {conditions['num_cores']} cores"]
    facts += [f"tokens counted by {document['token_counter']}"]
    _say("Accept. length: mean tokens a round emits, the model's own included.", "dim", console)
    _say(" · ".join(str(fact) for fact in facts if fact), "dim", console)


def _print_divergence(document: Document, console: Console) -> None:
    identical = document["identical"]
    if identical is None or identical["all"] or identical["first_divergence"] is None:
        return
    first = identical["first_divergence"]
    text = (
        f"Texts differ, first {first['prompt']} at temperature {first['temperature']:g}: "
        f"{first['candidate']} parts at {first['unit']} {first['position']}: "
        f"{first['baseline_text']!r} became {first['candidate_text']!r}."
    )
    _say(text, "yellow", console)


def _make_map(one: Mapping[str, Any]) -> Table:
    """One heat map as a table: speed-ups, and acceptance lengths beside them."""
    is_k = one["column_factor"] == "mtp"
    columns = [f"K={name}" if is_k and name != "auto" else name for name in one["columns"]]
    table = _make_table(_factor(one["row_factor"]), *columns, title=one["title"])
    for name, cells in zip(one["rows"], one["cells"], strict=True):
        table.add_row(printable(name), *(_map_cell(cell) for cell in cells))
    return table


def _map_cell(cell: Mapping[str, Any] | None) -> Text:
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
    table = _make_table("backbone", "plain", "auto", title="Tokens/s")
    for one in precisions:
        rates = (one["plain_tokens_per_second"], one["auto_tokens_per_second"])
        table.add_row(one["quant"], *(_number(rate, 1) for rate in rates))
    return table


def _make_effects(effects: Mapping[str, Any]) -> Table:
    table = _make_table("factor", "share", title="What decides the gain")
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


def _make_levels(document: Document) -> Table:
    """One row for each level and mode."""
    table = _make_table(
        _load_title(document), "mode", "answers", "tok/s\nall", "first token\np50  p95, ms",
        "pieces\np50  p95, ms", "answer\np50  p95, s", "busy,\nfailed",
    )  # fmt: skip
    table.columns[0].justify, table.columns[1].justify = "right", "left"
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


def _make_gains(document: Document, *, is_wide: bool) -> Table:
    """One row for each level, one column for each class."""
    classes = [printable(name) for name in document["classes"]]
    title = "Speed-up of single answers [95 % interval]"
    table = _make_table(_load_title(document), "all", *classes, title=title)
    table.columns[0].justify = "right"
    for level in document["levels"]:
        own = {one["task"]: one for one in level["classes"]}
        gains = [own.get(name) for name in document["classes"]]
        cells = [_gain(gain, has_interval=is_wide) for gain in gains]
        table.add_row(f"{level['value']:g}", _gain(level["gain"]), *cells)
    return table


def _load_title(document: Document) -> str:
    return "per\nsecond" if document["levels"][0]["is_open_loop"] else "at a\ntime"


def _two(own: Mapping[str, Any], name: str, digits: int) -> str:
    pair = (own[name.format(share)] for share in ("p50", "p95"))
    return "  ".join(_number(value, digits) for value in pair)


def _number(value: float | None, digits: int) -> str:
    return "·" if value is None else f"{value:.{digits}f}"
