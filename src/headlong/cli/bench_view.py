"""How a measurement looks in a terminal: the verdict, a table, the conditions.

In:  the document that `headlong bench` makes. Out: text for people; no number that is not in it.
"""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headlong.cli.output import printable

_WIDE = 100
"""Columns of a terminal from which on the table has everything."""

_STYLES = {"gain": "bold green", "loss": "bold red", "same": "", "unknown": "yellow"}


def print_results(document: Mapping[str, Any], console: Console, *, is_quiet: bool) -> None:
    """Print everything, or the verdict alone when quiet."""
    if not is_quiet and document["overall"] is not None:
        console.print(_make_table(document, is_wide=console.width >= _WIDE))
        _print_notes(document, console)
    if document["stopped"]:
        console.print(
            f"Stopped early: {document['stopped']}. {document['num_answered']} of "
            f"{document['num_planned']} questions were answered by all sides and count.",
            style="yellow",
            soft_wrap=True,
        )
    if document["failures"]:
        console.print(
            f"{len(document['failures'])} answers failed and are left out; the first: "
            f"{printable(document['failures'][0]['error'])}",
            style="red",
            soft_wrap=True,
        )
    _print_divergence(document, console)
    candidate = document.get("candidate")
    outcome = "" if candidate is None else document["overall"]["speedups"][candidate]["outcome"]
    is_trusted = document["recommended"] is not None or candidate is None
    style = _STYLES.get(outcome, "bold") if is_trusted else "bold red"
    console.print(Text(printable(document["verdict"]), style=style), soft_wrap=True)


def _make_table(document: Mapping[str, Any], *, is_wide: bool) -> Table:
    """One row for each task and candidate; for a single side one row a task."""
    baseline, *candidates = [side["name"] for side in document["sides"]]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("\ntask", no_wrap=True)
    titles = ["prompts"] if is_wide else []
    titles += [f"tok/s\n{baseline}"]
    if candidates:
        titles += [f"tok/s\n{candidates[0]}"] if len(candidates) == 1 else ["side", "tok/s"]
        titles += ["speed-up\n[95 % interval]"]
    titles += ["accept.\nlength"]
    titles += ["first\ntoken, ms", "p95\nlatency, s"] if is_wide else []
    titles += ["same\ntext"] if candidates else []
    for title in titles:
        table.add_column(title if "\n" in title else f"\n{title}", justify="right", no_wrap=True)
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
        cells += [f"{own['tokens_per_second']:.1f}", _speedup(group["speedups"][candidate])]
    accepted = own["acceptance"]
    cells += ["–" if accepted is None else f"{accepted['acceptance_length']:.2f}"]
    if is_wide:
        cells += [_both(plain, own, "ttft_p50_ms", 0), _both(plain, own, "latency_p95_s", 2)]
    if candidate is not None:
        cells += [_same_text(group["speedups"][candidate])]
    return cells


def _both(plain: Mapping[str, Any], own: Mapping[str, Any], name: str, digits: int) -> str:
    if plain is own:
        return f"{own[name]:.{digits}f}"
    return f"{plain[name]:.{digits}f} → {own[name]:.{digits}f}"


def _speedup(speedup: Mapping[str, Any]) -> Text:
    if speedup["value"] is None:
        return Text("–")
    low, high = speedup["low"], speedup["high"]
    interval = "1 prompt" if low is None else f"{low:.2f}–{high:.2f}"
    return Text(f"{speedup['value']:.2f} × [{interval}]", style=_STYLES[speedup["outcome"]])


def _same_text(speedup: Mapping[str, Any]) -> Text:
    same, compared = speedup["num_identical"], speedup["num_compared"]
    if same == compared:
        return Text("yes", style="green")
    return Text(f"{same} of {compared}", style="yellow")


def _print_notes(document: Mapping[str, Any], console: Console) -> None:
    """Say what the numbers mean and where they were measured."""
    for note in document["notes"]:
        console.print(printable(note), style="yellow", soft_wrap=True)
    for name, side in document["overall"]["sides"].items():
        share = side["prefill_head_share"]
        drafter = f", {share:.1%} of the time for prompts is the drafter's" if share else ""
        console.print(
            f"{name}: first token after {side['ttft_p50_ms']:.0f} ms (median), answers after "
            f"{side['latency_p50_s']:.2f} s (median) and {side['latency_p95_s']:.2f} s "
            f"(p95){drafter}",
            soft_wrap=True,
        )
    conditions, setup = document["conditions"], document["setup"]
    facts = [setup.get("model"), setup.get("drafter"), setup.get("backend_note")]
    facts += [f"{document['prompts']['source']} (hash {document['prompts']['hash']})"]
    facts += [f"{conditions['cpu']}, {conditions['num_cores']} cores"]
    facts += [f"tokens counted by {document['token_counter']}"]
    text = " · ".join(printable(str(fact)) for fact in facts if fact)
    console.print(
        "Accept. length: mean tokens a round emits, the model's own included.", style="dim"
    )
    console.print(text, style="dim", soft_wrap=True)


def _print_divergence(document: Mapping[str, Any], console: Console) -> None:
    identical = document["identical"]
    if identical is None or identical["all"] or identical["first_divergence"] is None:
        return
    first = identical["first_divergence"]
    text = (
        f"Texts differ, first {first['prompt']} at temperature {first['temperature']:g}: "
        f"{first['candidate']} parts at {first['unit']} {first['position']}: "
        f"{first['baseline_text']!r} became {first['candidate_text']!r}."
    )
    console.print(printable(text), style="yellow", soft_wrap=True)
