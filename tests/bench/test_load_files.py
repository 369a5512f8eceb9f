"""The folder of a load."""

import csv
import json
from pathlib import Path

import pytest

from headlong.bench.load_files import LoadFolder
from headlong.bench.load_summary import list_requests
from headlong.errors import RequestError
from load_parts import make_load_document, make_load_plan, make_log

PLAN = make_load_plan()


def test_everything_is_written(tmp_path: Path) -> None:
    log = make_log(PLAN, lambda mode, level, name: 1.0)
    document = make_load_document(log, PLAN)
    LoadFolder(tmp_path / "new").finish(document, list_requests(log))
    assert json.loads((tmp_path / "new" / "results.json").read_text()) == document
    with (tmp_path / "new" / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 64
    assert {row["level"] for row in rows} == {"1 at a time", "4 at a time"}
    assert document["verdict"] in (tmp_path / "new" / "report.html").read_text()


def test_older_results_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(RequestError, match="already holds a measurement"):
        LoadFolder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written"):
        LoadFolder(tmp_path / "file" / "below")
