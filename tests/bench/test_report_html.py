"""The report: every number in it is the document's, and it opens in a browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench_parts import make_document, make_pairs
from browser import open_page
from headlong.bench.plots import make_forest
from headlong.bench.report_html import Numbers, make_report
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
