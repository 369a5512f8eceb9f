"""A folder holds one measurement, whole."""

import csv
import json
from pathlib import Path

import pytest

from bench_parts import make_document, make_pairs
from grid_parts import make_grid_document, make_plan, measure
from headlong.bench.grid_run import CELL_COLUMNS, run_grid
from headlong.bench.load_summary import list_requests
from headlong.bench.report_folder import GRID, LOAD, ReportFolder
from headlong.bench.rows import COLUMNS
from headlong.errors import RequestError
from load_parts import make_load_document, make_load_plan, make_log

ROWS = make_pairs({"code": [2.0, 1.5]})
CELLS = [row.to_cells() for row in ROWS]


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_run_is_on_disk_at_once(tmp_path: Path) -> None:
    """A killed process must not take the measurement with it."""
    folder = ReportFolder(tmp_path / "deep" / "out")
    for number, row in enumerate(ROWS, start=1):
        folder.add(row.to_cells())
        assert len(read_csv(folder.path)) == number
    assert not (folder.path / "results.json").exists()


def test_folder_holds_json_csv_and_report(tmp_path: Path) -> None:
    document = make_document(ROWS)
    folder = ReportFolder(tmp_path / "out")
    folder.finish(document, CELLS)
    assert json.loads((folder.path / "results.json").read_text()) == json.loads(
        json.dumps(document)
    )
    cells = read_csv(folder.path)
    assert tuple(cells[0]) == COLUMNS
    assert [float(cell["total_s"]) for cell in cells] == [row.total_s for row in ROWS]
    assert "<!doctype html>" in (folder.path / "report.html").read_text()
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "report.html", "results.json", "runs.csv",
    ]  # fmt: skip


def test_rows_of_a_killed_run_are_never_overwritten(tmp_path: Path) -> None:
    """They are all that is left of it; the same command again would have wiped them."""
    ReportFolder(tmp_path).add(CELLS[0])
    with pytest.raises(RequestError, match="already holds a measurement"):
        ReportFolder(tmp_path)


def test_folder_where_nothing_was_measured_is_free(tmp_path: Path) -> None:
    ReportFolder(tmp_path)
    ReportFolder(tmp_path).add(CELLS[0])
    assert len(read_csv(tmp_path)) == 1


def test_older_results_are_never_overwritten(tmp_path: Path) -> None:
    ReportFolder(tmp_path).finish(make_document(ROWS), CELLS)
    with pytest.raises(RequestError, match="already holds a measurement"):
        ReportFolder(tmp_path)


def test_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        ReportFolder(tmp_path / "file" / "out")


def test_cells_come_back_from_the_folder(tmp_path: Path) -> None:
    records = measure().records
    folder = ReportFolder(tmp_path / "new", GRID)
    for record in records:
        folder.add(record)
    known = ReportFolder(tmp_path / "new", GRID).known()
    assert [known[record["key"]] for record in records] == list(records)
    assert run_grid(None, make_plan(), known).records == records  # type: ignore[arg-type] # unused


def test_cut_line_is_measured_again(tmp_path: Path) -> None:
    """A killed process leaves half a line; what is appended to it must not be lost with it."""
    records = measure().records[:3]
    folder = ReportFolder(tmp_path, GRID)
    folder.add(records[0])
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write(json.dumps(records[1])[:50])
    again = ReportFolder(tmp_path, GRID)
    again.add(records[2])
    assert set(ReportFolder(tmp_path, GRID).known()) == {records[0]["key"], records[2]["key"]}


def test_failed_and_foreign_lines_are_not_known(tmp_path: Path) -> None:
    record = measure().records[0]
    lines = [record | {"error": "broke"}, [1], {"key": "x"}]
    (tmp_path / "cells.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert ReportFolder(tmp_path, GRID).known() == {}


def test_all_files_are_written_and_written_again(tmp_path: Path) -> None:
    document = make_grid_document(measure())
    folder = ReportFolder(tmp_path, GRID)
    folder.finish(document, document["cells"])
    folder.finish(document, document["cells"])
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(document))
    with (tmp_path / "cells.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CELL_COLUMNS
    assert len(rows) == len(document["cells"])
    assert [float(row["speedup"]) for row in rows] == [c["speedup"] for c in document["cells"]]
    assert "heat" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "grid.svg").read_text().startswith("<svg")


def test_folders_of_other_measurements_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(RequestError, match="holds a measurement that is no grid"):
        ReportFolder(tmp_path, GRID)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        ReportFolder(tmp_path / "file" / "below", GRID)


PLAN = make_load_plan()


def test_everything_is_written(tmp_path: Path) -> None:
    log = make_log(PLAN, lambda mode, level, name: 1.0)
    document = make_load_document(log, PLAN)
    ReportFolder(tmp_path / "new", LOAD).finish(document, list_requests(log))
    assert json.loads((tmp_path / "new" / "results.json").read_text()) == document
    with (tmp_path / "new" / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 64
    assert {row["level"] for row in rows} == {"1 at a time", "4 at a time"}
    assert document["verdict"] in (tmp_path / "new" / "report.html").read_text()


def test_older_results_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(RequestError, match="already holds a measurement"):
        ReportFolder(tmp_path, LOAD)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        ReportFolder(tmp_path / "file" / "below", LOAD)
