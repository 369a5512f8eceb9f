"""The terminal's view of a measurement: whole tables, and no number of its own."""

import re
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from bench_parts import make_document, make_pairs
from headlong.cli.bench_view import print_results

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
