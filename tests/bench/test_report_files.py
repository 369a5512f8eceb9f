"""The folder of a measurement: kept as it grows, whole at the end, never overwritten."""

import csv
import json
from pathlib import Path

import pytest

from bench_parts import make_document, make_pairs
from headlong.bench.report_files import ResultFolder
from headlong.bench.rows import COLUMNS
from headlong.errors import RequestError

ROWS = make_pairs({"code": [2.0, 1.5]})


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_run_is_on_disk_at_once(tmp_path: Path) -> None:
    """A killed process must not take the measurement with it."""
    folder = ResultFolder(tmp_path / "deep" / "out")
    for number, row in enumerate(ROWS, start=1):
        folder.add(row)
        assert len(read_csv(folder.path)) == number
    assert not (folder.path / "results.json").exists()


def test_folder_holds_json_csv_and_report(tmp_path: Path) -> None:
    document = make_document(ROWS)
    folder = ResultFolder(tmp_path / "out")
    folder.finish(document, ROWS)
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
    ResultFolder(tmp_path).add(ROWS[0])
    with pytest.raises(RequestError, match="already holds a measurement"):
        ResultFolder(tmp_path)


def test_folder_where_nothing_was_measured_is_free(tmp_path: Path) -> None:
    ResultFolder(tmp_path)
    ResultFolder(tmp_path).add(ROWS[0])
    assert len(read_csv(tmp_path)) == 1


def test_older_results_are_never_overwritten(tmp_path: Path) -> None:
    ResultFolder(tmp_path).finish(make_document(ROWS), ROWS)
    with pytest.raises(RequestError, match="already holds a measurement"):
        ResultFolder(tmp_path)


def test_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        ResultFolder(tmp_path / "file" / "out")
