"""The HTML report of a grid: heat maps and what decides the gain, in one file without scripts.

In:  the document of a grid, and nothing else. Out: a page; every number in it carries its path in
that document, as in `report_html.py`.
"""

import math
from collections.abc import Mapping
from typing import Any

from headlong.bench.grid_cells import FACTOR_WORDS
from headlong.bench.report_html import render_page

_STRONGEST = 0.6
"""Opacity of the strongest colour; more would leave the numbers on it hard to read."""


def make_grid_report(document: Mapping[str, Any]) -> str:
    """Return the whole page."""
    return render_page(
        "grid.html.jinja",
        document,
        factor_words=FACTOR_WORDS,
        shade=make_shade(document),
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
