"""Every number on a page is the document's."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench_parts import make_document, make_pairs
from browser import open_page
from grid_parts import AXES, ScriptedMaker, make_grid_document, make_plan, measure
from headlong.bench.charts import make_forest
from headlong.bench.grid_cells import order_cells
from headlong.bench.grid_run import GridMeasured, run_grid
from headlong.bench.load_run import LoadLevel, LoadLog
from headlong.bench.report_pages import (
    WIDTH,
    Numbers,
    make_grid_picture,
    make_grid_report,
    make_load_report,
    make_report,
)
from load_parts import make_load_document, make_load_plan, make_log
from page_numbers import Page, check_numbers

ROWS = make_pairs({"code": [2.1, 1.9, 2.0, 2.2], "stories": [0.9, 0.92, 0.88, 0.91], "qa": [1.2]})
ROWS += make_pairs({"stories": [0.7, 0.8, 0.72, 0.75]}, temperature=0.9)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """A measurement with gains, losses and doubt."""
    notes = ["2 of 9 prompts repeat <earlier> ones."]
    return json.loads(json.dumps(make_document(ROWS, notes=notes)))  # type: ignore[no-any-return] # any JSON


def test_every_number_is_the_documents(document: dict[str, Any]) -> None:
    assert check_numbers(Page(make_report(document)), document) > 100


def test_no_number_stands_outside_of_the_document(document: dict[str, Any]) -> None:
    """Free text may only count depths and name the 95 %; the test above would not see the rest."""
    text = " ".join(Page(make_report(document)).text)
    names = [group["name"] for group in document["tasks"]]
    for known in (document["verdict"], document["prompts"]["hash"], *sorted(names, reverse=True)):
        text = text.replace(known, "")
    text = re.sub(r"depth \d+|p95|95 %|1 ×|1 prompt", "", text)
    assert re.findall(r"\d+", text) == []


def test_every_figure_of_every_task_is_shown(document: dict[str, Any]) -> None:
    paths = {str(attributes["data-path"]) for attributes, _ in Page(make_report(document)).numbers}
    for prefix in ("/overall", *(f"/tasks/{i}" for i in range(len(document["tasks"])))):
        for side in ("off", "auto"):
            for figure in ("tokens_per_second", "ms_per_token", "ttft_p50_ms", "latency_p95_s"):
                assert f"{prefix}/sides/{side}/{figure}" in paths
        assert f"{prefix}/speedups/auto/value" in paths
        assert f"{prefix}/sides/auto/prefill_head_share" in paths
    assert {"/speedup", "/speedup_interval/0", "/speedup_interval/1", "/p95/auto"} <= paths
    assert "/overall/sides/auto/acceptance/acceptance_at_depth/2" in paths


def test_verdict_stands_at_the_top(document: dict[str, Any]) -> None:
    report = make_report(document)
    assert document["verdict"] in report
    assert report.index(document["verdict"], report.index("<body>")) < report.index("<h2>")


def test_page_needs_nothing_from_elsewhere(document: dict[str, Any]) -> None:
    page = Page(make_report(document))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href", "onclick")]
    assert "url(" not in make_report(document)


def test_text_of_others_is_escaped(document: dict[str, Any]) -> None:
    evil = document | {"verdict": "<script>alert(1)</script>", "stopped": "<b>"}
    report = make_report(evil)
    assert "<script>" not in report
    assert "&lt;script&gt;" in report
    assert "&lt;earlier&gt;" in report


def test_forest_places_marks_by_their_numbers(document: dict[str, Any]) -> None:
    forest = make_forest(document)
    assert forest is not None
    assert forest.rows[0].is_overall
    numbers, width = Numbers(document), forest.axis.high - forest.axis.low
    for row in forest.rows:
        value = numbers.find(f"{row.path}/value")
        assert forest.axis.low + row.point / 100 * width == pytest.approx(value, abs=1e-4)
    assert forest.axis.low + forest.one / 100 * width == pytest.approx(1.0, abs=1e-4)


def test_partial_and_empty_measurements_have_reports(document: dict[str, Any]) -> None:
    partial = make_document(ROWS[:2], stopped="stopped with Ctrl-C", num_planned=9)
    assert "Partial: stopped with Ctrl-C" in make_report(partial)
    assert "Nothing was measured." in make_report(make_document([], stopped="x"))
    alone = [row for row in ROWS if row.side == "off"]
    assert "Recorded as a baseline" in make_report(make_document(alone, sides={"off": "MTP off"}))


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (360, "light")])
def test_page_fits_every_screen(
    document: dict[str, Any], tmp_path: Path, width: int, scheme: Any
) -> None:
    path = tmp_path / "report.html"
    path.write_text(make_report(document), encoding="utf-8")
    complaints: list[str] = []
    with open_page(path, width, color_scheme=scheme) as page:
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.reload()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#verdict").inner_text() == document["verdict"]
        marks = page.locator(".forest circle")
        assert marks.count() == 5
        boxes = [marks.nth(i).bounding_box() for i in range(5)]
        assert all(box is not None and 0 < box["x"] < width for box in boxes)
        is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != (
            "rgb(251, 251, 249)"
        )
        assert is_dark == (scheme == "dark")
    assert complaints == []


WIDE = replace(AXES, temperatures=(0.7,), modes=("auto", *range(1, 7)))


@pytest.fixture(scope="module")
def grid_document() -> dict[str, Any]:
    """A whole small grid, as it comes back from JSON."""
    notes = ["Something <odd>."]
    made = make_grid_document(
        run_grid(ScriptedMaker(), make_plan(order_cells(WIDE)), {}), notes=notes
    )
    return json.loads(json.dumps(made))  # type: ignore[no-any-return] # any JSON


def test_every_number_of_the_grid_is_the_documents(grid_document: dict[str, Any]) -> None:
    page = Page(make_grid_report(grid_document))
    assert check_numbers(page, grid_document) > 80
    paths = {str(attributes["data-path"]) for attributes, _ in page.numbers}
    for number, one in enumerate(grid_document["maps"]):
        for y, row in enumerate(one["cells"]):
            assert {f"/maps/{number}/cells/{y}/{x}/speedup" for x in range(len(row))} <= paths


def test_grid_page_needs_nothing_from_elsewhere(grid_document: dict[str, Any]) -> None:
    page = Page(make_grid_report(grid_document))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href", "onclick")]


def test_finding_stands_at_the_top_and_text_is_escaped(grid_document: dict[str, Any]) -> None:
    evil = grid_document | {"finding": "<script>alert(1)</script>"}
    report = make_grid_report(evil)
    assert "<script>" not in report
    assert "&lt;odd&gt;" in report
    assert report.index("&lt;script&gt;") < report.index("<h2>")


def test_gains_are_blue_and_losses_orange(grid_document: dict[str, Any]) -> None:
    report = make_grid_report(grid_document)
    cells = [cell for one in grid_document["maps"] for row in one["cells"] for cell in row if cell]
    assert report.count('class="gain" fill-opacity') == sum(c["speedup"] >= 1 for c in cells)
    assert report.count('class="loss" fill-opacity') == sum(c["speedup"] < 1 for c in cells)


def test_partial_and_empty_grids_have_reports() -> None:
    records = measure().records[:9]
    partial = make_grid_document(GridMeasured(records, "stopped with Ctrl-C"))
    assert "Partial: stopped with Ctrl-C" in make_grid_report(partial)
    assert "Nothing was measured." in make_grid_report(make_grid_document(GridMeasured([])))


@pytest.mark.parametrize("width", [360, 1200])
def test_grid_page_fits_every_screen(
    grid_document: dict[str, Any], tmp_path: Path, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(make_grid_report(grid_document), encoding="utf-8")
    with open_page(path, width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#verdict").inner_text() == grid_document["finding"]
        # No number touches its neighbour.
        touching = page.evaluate(
            """() => [...document.querySelectorAll('.heat svg')].filter(row => {
                 const boxes = [...row.querySelectorAll('.ratio')].map(
                   text => text.getBoundingClientRect());
                 return boxes.some((box, i) => i && box.left < boxes[i - 1].right);
               }).length"""
        )
        assert touching == 0


PLAN = make_load_plan(levels=[LoadLevel(n) for n in (1, 2, 4, 8, 16, 32)])


def seconds(mode: str, level: LoadLevel, name: str) -> float:
    """Auto gains when alone and loses among many."""
    return level.value if mode == "off" else level.value * (0.5 + level.value / 50)


@pytest.fixture(scope="module")
def load_document() -> dict[str, Any]:
    """A load of six levels, as it comes back from JSON."""
    made = make_load_document(make_log(PLAN, seconds), PLAN, notes=["Something <odd>."])
    return json.loads(json.dumps(made))  # type: ignore[no-any-return] # any JSON


def test_every_number_of_the_load_is_the_documents(load_document: dict[str, Any]) -> None:
    page = Page(make_load_report(load_document))
    assert check_numbers(page, load_document) > 200
    paths = {str(attributes["data-path"]) for attributes, _ in page.numbers}
    for number in range(6):
        for mode in ("off", "auto"):
            for figure in ("tokens_per_second", "ttft_p99_ms", "gap_p95_ms", "latency_p50_s"):
                assert f"/levels/{number}/modes/{mode}/{figure}" in paths
        assert f"/levels/{number}/classes/1/value" in paths


def test_load_page_needs_nothing_from_elsewhere(load_document: dict[str, Any]) -> None:
    report = make_load_report(load_document | {"verdict": "<script>"})
    page = Page(report)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href", "onclick")]
    assert "&lt;odd&gt;" in report


def test_partial_empty_and_single_loads_have_reports() -> None:
    log = make_log(PLAN, seconds)
    partial = LoadLog(log.slices[:3], "the server no longer answers")
    assert "Partial: the server no longer answers" in make_load_report(
        make_load_document(partial, PLAN)
    )
    assert "Nothing was measured." in make_load_report(make_load_document(LoadLog(), PLAN))
    alone = make_load_plan(modes=["off"])
    report = make_load_report(make_load_document(make_log(alone, seconds), alone))
    assert "Gains by traffic class" not in report


@pytest.mark.parametrize("width", [360, 1200])
def test_load_page_fits_every_screen(
    load_document: dict[str, Any], tmp_path: Path, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(make_load_report(load_document), encoding="utf-8")
    with open_page(path, width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#verdict").inner_text() == load_document["verdict"]
        dots = page.locator("circle.dot")
        assert dots.count() == 6 * (2 + 2 + 4 + 4 + 4)


@pytest.fixture(scope="module")
def small_grid() -> dict[str, Any]:
    """A whole small grid, as it comes back from JSON."""
    return json.loads(json.dumps(make_grid_document(measure())))  # type: ignore[no-any-return]


def test_every_number_of_the_picture_is_the_documents(small_grid: dict[str, Any]) -> None:
    page = Page(make_grid_picture(small_grid))
    cells = [cell for one in small_grid["maps"] for row in one["cells"] for cell in row if cell]
    num_shares = len(small_grid["effects"]["factors"]) + 1
    assert check_numbers(page, small_grid) == 2 * len(cells) + num_shares


def test_picture_is_xml_that_needs_nothing_from_elsewhere(small_grid: dict[str, Any]) -> None:
    odd = small_grid | {"finding": "<script>", "setup": {"model": "a&b"}}
    picture = make_grid_picture(odd)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()}
    assert tags == {"svg", "title", "style", "rect", "text", "g"}
    assert "href" not in picture


def test_partial_and_empty_grids_have_pictures() -> None:
    few = make_grid_document(GridMeasured(measure().records[:9]))
    for small_grid in (few, make_grid_document(GridMeasured([]))):
        ElementTree.fromstring(make_grid_picture(small_grid))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_is_drawn_in_full(small_grid: dict[str, Any], tmp_path: Path, scheme: str) -> None:
    (tmp_path / "page.html").write_text(make_grid_picture(small_grid), encoding="utf-8")
    with open_page(tmp_path / "page.html", WIDTH + 40, color_scheme=scheme) as page:
        outside = page.evaluate(
            """() => { const svg = document.querySelector('svg').getBoundingClientRect();
                 return [...document.querySelectorAll('text')].filter(text => {
                   const box = text.getBoundingClientRect();
                   return box.left < svg.left || box.right > svg.right || box.bottom > svg.bottom;
                 }).length; }"""
        )
        assert outside == 0
        paper = page.evaluate("getComputedStyle(document.querySelector('.page')).fill")
        assert (paper == "rgb(251, 251, 249)") == (scheme == "light")
