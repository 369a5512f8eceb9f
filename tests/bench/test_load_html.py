"""The report of a load: every number is the document's, and it opens on every screen."""

import json
from pathlib import Path
from typing import Any

import pytest

from browser import open_page
from headlong.bench.load_html import make_load_report
from headlong.bench.load_run import Level, LoadLog
from load_parts import make_load_document, make_load_plan, make_log
from page_numbers import Page, check_numbers

PLAN = make_load_plan(levels=[Level(n) for n in (1, 2, 4, 8, 16, 32)])


def seconds(mode: str, level: Level, name: str) -> float:
    """Auto gains when alone and loses among many."""
    return level.value if mode == "off" else level.value * (0.5 + level.value / 50)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """A load of six levels, as it comes back from JSON."""
    made = make_load_document(make_log(PLAN, seconds), PLAN, notes=["Something <odd>."])
    return json.loads(json.dumps(made))  # type: ignore[no-any-return] # any JSON


def test_every_number_is_the_documents(document: dict[str, Any]) -> None:
    page = Page(make_load_report(document))
    assert check_numbers(page, document) > 200
    paths = {str(attributes["data-path"]) for attributes, _ in page.numbers}
    for number in range(6):
        for mode in ("off", "auto"):
            for figure in ("tokens_per_second", "ttft_p99_ms", "gap_p95_ms", "latency_p50_s"):
                assert f"/levels/{number}/modes/{mode}/{figure}" in paths
        assert f"/levels/{number}/classes/1/value" in paths


def test_page_needs_nothing_from_elsewhere(document: dict[str, Any]) -> None:
    report = make_load_report(document | {"verdict": "<script>"})
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
def test_page_fits_every_screen(document: dict[str, Any], tmp_path: Path, width: int) -> None:
    path = tmp_path / "report.html"
    path.write_text(make_load_report(document), encoding="utf-8")
    with open_page(path, width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#verdict").inner_text() == document["verdict"]
        dots = page.locator("circle.dot")
        assert dots.count() == 6 * (2 + 2 + 4 + 4 + 4)
