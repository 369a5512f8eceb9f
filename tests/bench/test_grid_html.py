"""The report of a grid: every number is the document's, and it opens on every screen."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browser import open_page
from grid_parts import AXES, ScriptedMaker, make_grid_document, make_plan, measure
from headlong.bench.grid_cells import order_cells
from headlong.bench.grid_html import make_grid_report
from headlong.bench.grid_run import GridMeasured, run_grid
from page_numbers import Page, check_numbers

WIDE = replace(AXES, temperatures=(0.7,), modes=("auto", *range(1, 7)))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """A whole small grid, as it comes back from JSON."""
    notes = ["Something <odd>."]
    made = make_grid_document(
        run_grid(ScriptedMaker(), make_plan(order_cells(WIDE)), {}), notes=notes
    )
    return json.loads(json.dumps(made))  # type: ignore[no-any-return] # any JSON


def test_every_number_is_the_documents(document: dict[str, Any]) -> None:
    page = Page(make_grid_report(document))
    assert check_numbers(page, document) > 80
    paths = {str(attributes["data-path"]) for attributes, _ in page.numbers}
    for number, one in enumerate(document["maps"]):
        for y, row in enumerate(one["cells"]):
            assert {f"/maps/{number}/cells/{y}/{x}/speedup" for x in range(len(row))} <= paths


def test_page_needs_nothing_from_elsewhere(document: dict[str, Any]) -> None:
    page = Page(make_grid_report(document))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href", "onclick")]


def test_finding_stands_at_the_top_and_text_is_escaped(document: dict[str, Any]) -> None:
    evil = document | {"finding": "<script>alert(1)</script>"}
    report = make_grid_report(evil)
    assert "<script>" not in report
    assert "&lt;odd&gt;" in report
    assert report.index("&lt;script&gt;") < report.index("<h2>")


def test_gains_are_blue_and_losses_orange(document: dict[str, Any]) -> None:
    report = make_grid_report(document)
    cells = [cell for one in document["maps"] for row in one["cells"] for cell in row if cell]
    assert report.count('class="gain" fill-opacity') == sum(c["speedup"] >= 1 for c in cells)
    assert report.count('class="loss" fill-opacity') == sum(c["speedup"] < 1 for c in cells)


def test_partial_and_empty_grids_have_reports() -> None:
    records = measure().records[:9]
    partial = make_grid_document(GridMeasured(records, "stopped with Ctrl-C"))
    assert "Partial: stopped with Ctrl-C" in make_grid_report(partial)
    assert "Nothing was measured." in make_grid_report(make_grid_document(GridMeasured([])))


@pytest.mark.parametrize("width", [360, 1200])
def test_page_fits_every_screen(document: dict[str, Any], tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    path.write_text(make_grid_report(document), encoding="utf-8")
    with open_page(path, width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#verdict").inner_text() == document["finding"]
        # No number touches its neighbour.
        touching = page.evaluate(
            """() => [...document.querySelectorAll('.heat svg')].filter(row => {
                 const boxes = [...row.querySelectorAll('.ratio')].map(
                   text => text.getBoundingClientRect());
                 return boxes.some((box, i) => i && box.left < boxes[i - 1].right);
               }).length"""
        )
        assert touching == 0
