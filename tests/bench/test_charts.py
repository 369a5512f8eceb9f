"""Marks stand where their numbers are."""

from typing import Any

import pytest

from bench_parts import make_document, make_pairs
from headlong.bench.charts import Axis, make_charts, make_curves, make_forest
from headlong.bench.load_run import LoadLevel, LoadLog
from headlong.bench.report_pages import Numbers
from load_parts import make_load_document, make_load_plan, make_log


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 4.0, [0, 1, 2, 3, 4]),
        (0.87, 2.31, [1.0, 1.5, 2.0]),
        (0.0, 0.037, [0.0, 0.01, 0.02, 0.03]),
        (0.0, 900.0, [0, 250, 500, 750]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert Axis(low, high).ticks == pytest.approx(ticks)


def test_places_are_per_cent_and_stay_inside() -> None:
    axis = Axis(1.0, 3.0)
    assert (axis.place(1.0), axis.place(2.5), axis.place(9.0), axis.place(-1)) == (0, 75, 100, 0)


def test_wild_interval_does_not_squeeze_the_rest() -> None:
    """Two prompts that disagree have an interval of decades; the others must stay readable."""
    document = make_document(make_pairs({"code": [2.0] * 5, "odd": [0.6, 3.0]}))
    forest = make_forest(document)
    assert forest is not None
    assert forest.axis.high < 4.5
    wild = next(row for row in forest.rows if row.name == "odd")
    assert wild.high is not None
    assert wild.high > 95


def test_curves_climb_to_all_answers() -> None:
    axis, curves = make_curves(make_document(make_pairs({"code": [2.0, 1.0]})))
    assert axis.high == pytest.approx(1.02)
    assert [curve.side for curve in curves] == ["off", "auto"]
    points = [[float(place) for place in point.split(",")] for point in curves[1].points.split()]
    assert points[0] == [0, 100]
    assert points[2] == pytest.approx([100 * 0.5 / 1.02, 50], abs=0.01)
    assert points[-1] == [100, 0]


def test_no_speedup_draws_no_forest() -> None:
    rows = [row for row in make_pairs({"code": [2.0]}) if row.side == "off"]
    assert make_forest(make_document(rows, sides={"off": "MTP off"})) is None


PLAN = make_load_plan()


def seconds(mode: str, level: LoadLevel, name: str) -> float:
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
