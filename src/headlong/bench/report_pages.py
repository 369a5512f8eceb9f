"""Report pages: HTML and SVG files that open anywhere, without scripts.

In:  the document of a measurement, a grid or a load, and nothing else. Out: a page whose every
number carries its path in that document, so that a test can hold one against the other.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headlong.bench.charts import list_groups, make_charts, make_curves, make_forest
from headlong.bench.grid_cells import FACTOR_WORDS

_TEMPLATES = Path(__file__).parent

FORMATS: Mapping[str, Callable[[float], str]] = {
    "ratio": "{:.2f}".format,
    "rate": "{:,.1f}".format,
    "count": "{:,}".format,
    "ms": "{:.1f}".format,
    "ms_per_token": "{:.2f}".format,
    "seconds": "{:.2f}".format,
    "length": "{:.2f}".format,
    "percent": lambda share: f"{100 * share:.1f} %",
}
"""How each kind of number is written."""

UNKNOWN = "–"

_STRONGEST = 0.6
"""Opacity of the strongest colour; more would leave the numbers on it hard to read."""

WIDTH = 960
_MARGIN = 20
_TITLE = 64
_BAR = 24
_MAP_GAP = 34
_MAP_WIDTH = (WIDTH - 3 * _MARGIN) // 2
_NAMES = 92
"""Width of the labels to the left of a map's rows."""

_HEADER, _ROW = 44, 36


class Numbers:
    """Looks numbers up in a document and writes them, each with its path."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def find(self, path: str) -> Any:
        """Return the value at a path like /tasks/0/sides/off/num_tokens; None if there is none."""
        place: Any = self._document
        for name in path.strip("/").split("/"):
            if isinstance(place, list):
                place = place[int(name)] if int(name) < len(place) else None
            else:
                place = None if place is None else place.get(name)
        return place

    def show(self, path: str, kind: str) -> Markup:
        """Write the number at a path."""
        value = self.find(path)
        if value is None:
            return Markup(UNKNOWN)
        text = FORMATS[kind](value)
        return Markup('<data data-path="{}" data-kind="{}" value="{!r}">{}</data>').format(
            path, kind, value, text
        )

    def mark(self, path: str, kind: str, attributes: str = "") -> Markup:
        """Write the number at a path inside a drawing, where SVG knows no <data>."""
        value = self.find(path)
        shown = UNKNOWN if value is None else FORMATS[kind](value)
        return Markup('<text {} data-path="{}" data-kind="{}" data-value="{!r}">{}</text>').format(
            Markup(attributes), path, kind, value, shown
        )


def render_page(template: str, document: Mapping[str, Any], **parts: Any) -> str:
    """Fill a template, which has the document as `doc` and writes numbers with `show`."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = Numbers(document)
    return environment.get_template(template).render(
        doc=document, show=numbers.show, mark=numbers.mark, **parts
    )


def make_report(document: Mapping[str, Any]) -> str:
    """Return the whole page."""
    is_measured = document["overall"] is not None
    axis, curves = make_curves(document) if is_measured else (None, [])
    return render_page(
        "report.html.jinja",
        document,
        forest=make_forest(document) if is_measured else None,
        latency_axis=axis,
        curves=curves,
        groups=list_groups(document) if is_measured else [],
        depths=_list_depths(document) if is_measured else [],
        side_number={side["name"]: i for i, side in enumerate(document["sides"])},
        outcome_words={
            "gain": "faster",
            "loss": "slower",
            "same": "no difference",
            "unknown": "not enough data to tell",
        },
    )


def _list_depths(document: Mapping[str, Any]) -> list[tuple[str, str, list[float]]]:
    """Return for every side that drafted: name, path, and acceptance at each depth."""
    found = []
    for name, side in document["overall"]["sides"].items():
        accepted = side["acceptance"]
        if accepted is not None and accepted["num_drafted"] and accepted["acceptance_at_depth"]:
            path = f"/overall/sides/{name}/acceptance"
            found.append((name, path, accepted["acceptance_at_depth"]))
    return found


def make_grid_report(document: Mapping[str, Any]) -> str:
    """Return the whole page."""
    return render_page(
        "grid.html.jinja", document, factor_words=FACTOR_WORDS, shade=make_shade(document)
    )


def make_shade(document: Mapping[str, Any]) -> Any:
    """Return what turns a speed-up into a colour's opacity, on one scale for all maps."""
    logs = [
        abs(math.log(cell["speedup"]))
        for one in document["maps"]
        for row in one["cells"]
        for cell in row
        if cell is not None
    ]
    strongest = max([*logs, math.log(1.2)])  # noise alone shall not glow

    def shade(speedup: float) -> float:
        return round(_STRONGEST * abs(math.log(speedup)) / strongest, 3)

    return shade


def make_load_report(document: Mapping[str, Any]) -> str:
    """Return the whole page."""
    return render_page("load.html.jinja", document, charts=make_charts(document))


@dataclass(frozen=True, slots=True)
class Frame:
    """The position of one map."""

    x: float
    y: float
    left: float
    """Where its first column begins, from `x`."""
    column: float
    """How wide each column is."""


def make_grid_picture(document: Mapping[str, Any]) -> str:
    """Return the whole drawing."""
    effects = document["effects"]
    num_bars = 0 if effects is None else len(effects["factors"]) + len(effects["untold"]) + 1
    below = _TITLE + (num_bars * _BAR + 40 if num_bars else 0)
    frames, height = _lay_out(document["maps"], below)
    return render_page(
        "grid.svg.jinja",
        document,
        factor_words=FACTOR_WORDS,
        shade=make_shade(document),
        frames=frames,
        width=WIDTH,
        height=height,
    )


def _lay_out(maps: Any, top: float) -> tuple[list[Frame], float]:
    """Place maps two abreast; return also where the drawing ends."""
    frames: list[Frame] = []
    for first in range(0, len(maps), 2):
        pair = maps[first : first + 2]
        for place, one in enumerate(pair):
            column = (_MAP_WIDTH - _NAMES) / len(one["columns"])
            x = _MARGIN + place * (_MAP_WIDTH + _MARGIN)
            frames.append(Frame(x, top, _NAMES, round(column, 2)))
        top += _HEADER + _ROW * max(len(one["rows"]) for one in pair) + _MAP_GAP
    return frames, top
