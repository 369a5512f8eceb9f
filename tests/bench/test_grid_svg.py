"""The picture of a grid: the document's numbers, alone in one file, light and dark."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from browser import open_page
from grid_parts import make_grid_document, measure
from headlong.bench.grid_run import GridMeasured
from headlong.bench.grid_svg import WIDTH, make_grid_picture
from page_numbers import Page, check_numbers


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """A whole small grid, as it comes back from JSON."""
    return json.loads(json.dumps(make_grid_document(measure())))  # type: ignore[no-any-return]


def test_every_number_is_the_documents(document: dict[str, Any]) -> None:
    page = Page(make_grid_picture(document))
    cells = [cell for one in document["maps"] for row in one["cells"] for cell in row if cell]
    num_shares = len(document["effects"]["factors"]) + 1
    assert check_numbers(page, document) == 2 * len(cells) + num_shares


def test_picture_is_xml_that_needs_nothing_from_elsewhere(document: dict[str, Any]) -> None:
    odd = document | {"finding": "<script>", "setup": {"model": "a&b"}}
    picture = make_grid_picture(odd)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(picture).iter()}
    assert tags == {"svg", "title", "style", "rect", "text", "g"}
    assert "href" not in picture


def test_partial_and_empty_grids_have_pictures() -> None:
    few = make_grid_document(GridMeasured(measure().records[:9]))
    for document in (few, make_grid_document(GridMeasured([]))):
        ElementTree.fromstring(make_grid_picture(document))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_is_drawn_in_full(document: dict[str, Any], tmp_path: Path, scheme: str) -> None:
    (tmp_path / "page.html").write_text(make_grid_picture(document), encoding="utf-8")
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
