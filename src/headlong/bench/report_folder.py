"""The folder of a measurement: results.json, a CSV table, pages, and a log where a run continues.

In:  records as they come, the document at the end. Out: files. A record is on disk as soon as it is
known, so that not even a killed process loses what was measured. What a bench, a grid and a load
write differs only in their `ReportKind`.
"""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from headlong.bench import report_pages
from headlong.bench.grid_run import CELL_COLUMNS
from headlong.bench.load_summary import REQUEST_COLUMNS
from headlong.bench.rows import COLUMNS
from headlong.errors import RequestError

RESULTS, REPORT = "results.json", "report.html"

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportKind:
    """What one kind of measurement writes besides results.json."""

    table: str
    columns: tuple[str, ...]
    pages: Mapping[str, Callable[[Mapping[str, Any]], str]]
    log: str | None = None
    """JSON lines that a later run continues from; None for a folder that is written once."""


BENCH = ReportKind("runs.csv", COLUMNS, {REPORT: report_pages.make_report})
LOAD = ReportKind("requests.csv", REQUEST_COLUMNS, {REPORT: report_pages.make_load_report})
GRID = ReportKind(
    "cells.csv",
    CELL_COLUMNS,
    {REPORT: report_pages.make_grid_report, "grid.svg": report_pages.make_grid_picture},
    log="cells.jsonl",
)


class ReportFolder:
    """Writes one measurement into one folder."""

    def __init__(self, path: Path, kind: ReportKind = BENCH) -> None:
        """Make the folder, or continue the log in it; refuse one with another measurement."""
        self.path, self._kind = path, kind
        self._lines: list[str] = []
        self._refuse_used()
        with self._writing():
            path.mkdir(parents=True, exist_ok=True)
            if kind.log is None:
                self._write_table(())
            else:
                self._lines = _read_whole_lines(path / kind.log)

    def known(self) -> dict[str, dict[str, Any]]:
        """Return the records of earlier runs by key; failed ones are to be measured again."""
        records: dict[str, dict[str, Any]] = {}
        for line in self._lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and set(self._kind.columns) <= set(record):
                records[record["key"]] = record
        return {key: record for key, record in records.items() if record["error"] is None}

    def add(self, record: Record) -> None:
        """Keep one record."""
        name = self._kind.log or self._kind.table
        with self._writing(), (self.path / name).open("a", encoding="utf-8", newline="") as file:
            if self._kind.log is None:
                csv.DictWriter(file, self._kind.columns).writerow(record)
            else:
                file.write(json.dumps(record) + "\n")

    def finish(self, document: Mapping[str, Any], records: Iterable[Record]) -> None:
        """Write everything there is to say."""
        with self._writing():
            self._write_table(records)
            for name, make_page in self._kind.pages.items():
                _write_whole(self.path / name, make_page(document))
            # Last: a folder with results is a folder with everything.
            _write_whole(self.path / RESULTS, json.dumps(document, indent=1) + "\n")

    def _write_table(self, records: Iterable[Record]) -> None:
        with (self.path / self._kind.table).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._kind.columns)
            writer.writeheader()
            writer.writerows(records)

    def _refuse_used(self) -> None:
        """Refuse a folder with an older measurement, also with what a killed one left."""
        has_results = (self.path / RESULTS).exists()
        if self._kind.log is not None:
            if has_results and not (self.path / self._kind.log).exists():
                problem = f"{self.path} holds a measurement that is no grid."
                raise RequestError(problem, "Name another folder: results are never overwritten.")
            return
        try:
            has_rows = (self.path / self._kind.table).read_bytes().count(b"\n") > 1
        except OSError:  # no such file: nothing was measured
            has_rows = False
        if has_results or has_rows:
            raise RequestError(
                f"{self.path} already holds a measurement.",
                "Name another folder, or delete that one: results are never overwritten.",
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"The results cannot be written to {self.path}: {error.strerror or error}."
            remedy = "Name a folder that you may write to and that has room."
            raise RequestError(problem, remedy) from error


def _read_whole_lines(path: Path) -> list[str]:
    """Return the lines of a log; one that was cut off is dropped, also from the file."""
    try:
        text = path.read_text("utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not text: {error}.", "Name another folder.") from error
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        _write_whole(path, text)
    path.touch()
    return text.splitlines()


def _write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    half = path.with_name(f".{path.name}.part")
    half.write_text(text, encoding="utf-8")
    os.replace(half, path)
