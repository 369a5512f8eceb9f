"""Axes and curves: round ticks, marks inside, one step for every answer."""

import pytest

from bench_parts import make_document, make_pairs
from headlong.bench.plots import Axis, make_curves, make_forest


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
