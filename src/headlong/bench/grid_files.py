"""The folder of a grid: cells.jsonl, cells.csv, results.json, report.html, grid.svg.

In:  records as they come, the document at the end. Out: files, and the records of earlier runs.
Every cell is a line of cells.jsonl as soon as it is known, so that a run can be stopped, even
killed, and continued. A line that was cut off is measured again.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headlong.bench.grid_cells import Cell
from headlong.bench.grid_html import make_grid_report
from headlong.bench.grid_run import FIGURES, Record
from headlong.bench.grid_svg import make_grid_picture
from headlong.bench.report_files import REPORT, RESULTS, unwritable, write_whole
from headlong.errors import RequestError

CELLS, TABLE, PICTURE = "cells.jsonl", "cells.csv", "grid.svg"
COLUMNS = (*(field.name for field in fields(Cell)), *FIGURES)


class GridFolder:
    """Keeps one grid in one folder."""

    def __init__(self, path: Path) -> None:
        """Make the folder, or go on with the grid in it; refuse one with another measurement."""
        self.path = path
        if (path / RESULTS).exists() and not (path / CELLS).exists():
            raise RequestError(
                f"{path} holds a measurement that is no grid.",
                "Name another folder: results are never overwritten.",
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            text = (path / CELLS).read_text("utf-8") if (path / CELLS).exists() else ""
            if text and not text.endswith("\n"):  # the line that was being written is lost
                text = text[: text.rfind("\n") + 1]
                write_whole(path / CELLS, text)
            (path / CELLS).touch()
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error
        self._lines = text.splitlines()

    def known(self) -> dict[str, Record]:
        """Return the cells of earlier runs by key; failed ones are to be tried again."""
        records: dict[str, Record] = {}
        for line in self._lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and set(COLUMNS) <= set(record):
                records[record["key"]] = record
        return {key: record for key, record in records.items() if record["error"] is None}

    def add(self, record: Record) -> None:
        """Keep one cell."""
        try:
            with (self.path / CELLS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def finish(self, document: Mapping[str, Any]) -> None:
        """Write everything there is to say, over what an earlier part of the run has said."""
        try:
            self._write_table(document["cells"])
            write_whole(self.path / REPORT, make_grid_report(document))
            write_whole(self.path / PICTURE, make_grid_picture(document))
            write_whole(self.path / RESULTS, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _write_table(self, records: Sequence[Record]) -> None:
        with (self.path / TABLE).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(records)


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> RequestError:
    if isinstance(error, OSError):
        return unwritable(path, error)
    return RequestError(f"{path / CELLS} is not text: {error}.", "Name another folder.")
