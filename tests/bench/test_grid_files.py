"""The folder of a grid: every cell is kept at once, and a cut line costs one cell."""

import csv
import json
from pathlib import Path

import pytest

from grid_parts import make_grid_document, make_plan, measure
from headlong.bench.grid_files import COLUMNS, GridFolder
from headlong.bench.grid_run import run_grid
from headlong.errors import RequestError


def test_cells_come_back_from_the_folder(tmp_path: Path) -> None:
    records = measure().records
    folder = GridFolder(tmp_path / "new")
    for record in records:
        folder.add(record)
    known = GridFolder(tmp_path / "new").known()
    assert [known[record["key"]] for record in records] == list(records)
    assert run_grid(None, make_plan(), known).records == records  # type: ignore[arg-type] # unused


def test_cut_line_is_measured_again(tmp_path: Path) -> None:
    """A killed process leaves half a line; what is appended to it must not be lost with it."""
    records = measure().records[:3]
    folder = GridFolder(tmp_path)
    folder.add(records[0])
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write(json.dumps(records[1])[:50])
    again = GridFolder(tmp_path)
    again.add(records[2])
    assert set(GridFolder(tmp_path).known()) == {records[0]["key"], records[2]["key"]}


def test_failed_and_foreign_lines_are_not_known(tmp_path: Path) -> None:
    record = measure().records[0]
    lines = [record | {"error": "broke"}, [1], {"key": "x"}]
    (tmp_path / "cells.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert GridFolder(tmp_path).known() == {}


def test_all_files_are_written_and_written_again(tmp_path: Path) -> None:
    document = make_grid_document(measure())
    folder = GridFolder(tmp_path)
    folder.finish(document)
    folder.finish(document)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(document))
    with (tmp_path / "cells.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(document["cells"])
    assert [float(row["speedup"]) for row in rows] == [c["speedup"] for c in document["cells"]]
    assert "heat" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "grid.svg").read_text().startswith("<svg")


def test_folders_of_other_measurements_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(RequestError, match="holds a measurement that is no grid"):
        GridFolder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        GridFolder(tmp_path / "file" / "below")
