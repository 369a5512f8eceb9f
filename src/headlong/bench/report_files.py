"""The folder of a measurement: results.json, runs.csv, report.html.

In:  runs as they come, the document at the end. Out: files. Every run is in the CSV as soon as it
is known, so that not even a killed process loses what was measured.
"""

import csv
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headlong.bench.report_html import make_report
from headlong.bench.rows import COLUMNS, Row
from headlong.errors import RequestError

RESULTS, RUNS, REPORT = "results.json", "runs.csv", "report.html"


class ResultFolder:
    """Writes one measurement into one folder."""

    def __init__(self, path: Path) -> None:
        """Make the folder; refuse one that holds an older measurement."""
        self.path = path
        refuse_used(path, RUNS)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._write_rows(())
        except OSError as error:
            raise unwritable(path, error) from error

    def add(self, row: Row) -> None:
        """Keep one run."""
        try:
            with (self.path / RUNS).open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow(row.to_cells())
        except OSError as error:
            raise unwritable(self.path, error) from error

    def finish(self, document: Mapping[str, Any], rows: Iterable[Row]) -> None:
        """Write everything there is to say."""
        try:
            self._write_rows(rows)
            write_whole(self.path / REPORT, make_report(document))
            # Last: a folder with results is a folder with everything.
            write_whole(self.path / RESULTS, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _write_rows(self, rows: Iterable[Row]) -> None:
        with (self.path / RUNS).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(row.to_cells() for row in rows)


def refuse_used(path: Path, table: str) -> None:
    """Refuse a folder with an older measurement, also with what a killed one left in its table."""
    try:
        is_used = (path / RESULTS).exists() or (path / table).read_bytes().count(b"\n") > 1
    except OSError:  # no such file: nothing was measured
        is_used = False
    if is_used:
        raise RequestError(
            f"{path} already holds a measurement.",
            "Name another folder, or delete that one: results are never overwritten.",
        )


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    half = path.with_name(f".{path.name}.part")
    half.write_text(text, encoding="utf-8")
    os.replace(half, path)


def unwritable(path: Path, error: OSError) -> RequestError:
    """Say why results cannot be written to a folder."""
    problem = f"The results cannot be written to {path}: {error.strerror or error}."
    return RequestError(problem, "Name a folder that you may write to and that has room.")
