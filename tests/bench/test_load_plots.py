"""The plots of a load: every point stands where its number says."""

from typing import Any

import pytest

from headlong.bench.load_plots import make_charts
from headlong.bench.load_run import Level, LoadLog
from headlong.bench.report_html import Numbers
from load_parts import make_load_document, make_load_plan, make_log

PLAN = make_load_plan()


def seconds(mode: str, level: Level, name: str) -> float:
    """Some times that differ everywhere."""
    return (1.0 if mode == "off" else 0.6) * level.value * (1.0 if name == "chat" else 0.9)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """A load of two levels."""
    return make_load_document(make_log(PLAN, seconds), PLAN)


def test_points_stand_by_their_numbers(document: dict[str, Any]) -> None:
    numbers = Numbers(document)
    charts = make_charts(document)
    assert len(charts) == 5
    for chart in charts:
        for line in chart.lines:
            assert len(line.points) == 2
            for point in line.points:
                found = numbers.find(point.path)
                value = found["value"] if isinstance(found, dict) else found
                height = chart.axis.high - chart.axis.low
                placed = chart.axis.low + (100 - point.y) / 100 * height
                assert placed == pytest.approx(value, rel=1e-3)


def test_gains_have_intervals_and_the_line_at_one(document: dict[str, Any]) -> None:
    gains = make_charts(document)[0]
    assert [line.name for line in gains.lines] == ["agents", "chat"]
    assert gains.one is not None
    for line in gains.lines:
        for point in line.points:
            assert point.low is not None
            assert point.high is not None
            assert point.high <= point.y <= point.low < gains.one  # upwards is less


def test_percentiles_are_solid_and_dashed(document: dict[str, Any]) -> None:
    latency = make_charts(document)[2]
    assert [(line.name, line.is_dashed) for line in latency.lines] == [
        ("off", False), ("off", True), ("auto", False), ("auto", True),
    ]  # fmt: skip


def test_nothing_is_drawn_of_nothing() -> None:
    assert make_charts(make_load_document(LoadLog(), PLAN)) == []
