"""The HTML report of a load: one file that opens anywhere, without scripts.

In:  the document of a load, and nothing else. Out: a page; every number in it carries its path in
that document, as in `report_html.py`.
"""

from collections.abc import Mapping
from typing import Any

from headlong.bench.load_plots import make_charts
from headlong.bench.report_html import render_page


def make_load_report(document: Mapping[str, Any]) -> str:
    """Return the whole page."""
    return render_page("load.html.jinja", document, charts=make_charts(document))
