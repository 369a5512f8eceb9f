"""The picture of a grid: what decides the gain, and all maps, in one SVG for pages and documents.

In:  the document of a grid, and nothing else. Out: a drawing that needs no scripts, fonts or styles
from elsewhere and is light or dark as its reader is; every number in it carries its path in that
document, as in `report_html.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headlong.bench.grid_cells import FACTOR_WORDS
from headlong.bench.grid_html import make_shade
from headlong.bench.report_html import render_page

WIDTH = 960
_MARGIN = 20
_TITLE = 64
_BAR = 24
_MAP_GAP = 34
_MAP_WIDTH = (WIDTH - 3 * _MARGIN) // 2
_NAMES = 92
"""Width of what stands to the left of a map's rows."""
_HEADER, _ROW = 44, 36


@dataclass(frozen=True, slots=True)
class Frame:
    """Where one map stands."""

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
