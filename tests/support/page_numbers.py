"""Reads reports: every number with its path, held against the document it was made from."""

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from headlong.bench.report_pages import FORMATS, UNKNOWN

_APART = ("style", "title", "text", "dd", "dt", "footer", "h1", "li")
"""Elements whose text is not about the document: what is drawn, names, conditions."""


class Page(HTMLParser):
    """Collects numbers, of <data> elements and of drawings, all tags, and the text between."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.numbers: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self._is_apart = False
        self._open: dict[str, str | None] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        found = dict(attrs)
        self._open = found if "data-kind" in found else None
        self._is_apart = tag in _APART

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.numbers.append((self._open, data))
        elif not self._is_apart:
            self.text.append(data)


def check_numbers(page: Page, document: Mapping[str, Any]) -> int:
    """Hold every number of a page against the document; return how many there are."""
    for attributes, shown in page.numbers:
        path, kind = str(attributes["data-path"]), str(attributes["data-kind"])
        place: Any = document
        for name in path.split("/")[1:]:
            place = place[int(name)] if isinstance(place, list) else place[name]
        assert repr(place) == attributes.get("value", attributes.get("data-value")), path
        assert shown == (UNKNOWN if place is None else FORMATS[kind](place)), path
    return len(page.numbers)
