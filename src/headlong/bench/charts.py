"""Charts: coordinates of the plots in a report, in per cent of their width and height.

In:  the document of a measurement. Out: marks, lines and ticks for the templates, which draw them
as SVG. Every mark keeps the path of its number in the document.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

_NICE_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MAX_CURVE_POINTS = 200


@dataclass(frozen=True, slots=True)
class Axis:
    """A straight scale from `low` to `high`."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return the position of a value, in per cent, limited to the plot."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def place_known(self, value: float | None) -> float | None:
        """Return the position of a value; None if it is unknown."""
        return None if value is None else self.place(value)

    def height(self, value: float) -> float:
        """Return the position of a value from the top."""
        return round(100 - self.place(value), 3)

    @property
    def ticks(self) -> list[float]:
        """A handful of round numbers on the scale."""
        raw = (self.high - self.low) / 4
        unit = 10 ** math.floor(math.log10(raw))
        step = next(unit * nice for nice in _NICE_STEPS if unit * nice >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [round(n * step, 10) for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One speed-up with its interval."""

    name: str
    candidate: str
    path: str
    """Of the speed-up in the document."""
    outcome: str
    is_overall: bool
    point: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Forest:
    """All speed-ups on one scale."""

    axis: Axis
    one: float
    """The position of 1 ×."""
    rows: Sequence[ForestRow]


@dataclass(frozen=True, slots=True)
class Curve:
    """The share of one side's answers that were there after so many seconds."""

    side: str
    points: str
    """For an SVG polyline in a square of 100."""


def list_groups(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every group with its path, overall first."""
    tasks = [(f"/tasks/{i}", group) for i, group in enumerate(document["tasks"])]
    return [("/overall", document["overall"]), *tasks]


def make_forest(document: Mapping[str, Any]) -> Forest | None:
    """Lay the speed-ups out, overall first; None without any."""
    found = [
        (path, group, name, speedup)
        for path, group in list_groups(document)
        for name, speedup in group["speedups"].items()
        if speedup["value"] is not None
    ]
    if not found:
        return None
    axis = _ratio_axis([speedup for _, _, _, speedup in found])
    rows = [
        ForestRow(
            name=group["name"],
            candidate=name,
            path=f"{path}/speedups/{name}",
            outcome=speedup["outcome"],
            is_overall=group["task"] is None,
            point=axis.place(speedup["value"]),
            low=axis.place_known(speedup["low"]),
            high=axis.place_known(speedup["high"]),
        )
        for path, group, name, speedup in found
    ]
    return Forest(axis, axis.place(1.0), rows)


def _ratio_axis(speedups: Sequence[Mapping[str, Any]]) -> Axis:
    """Return a scale that shows 1 × and all speed-ups; wild intervals run off its ends."""
    values = [speedup["value"] for speedup in speedups]
    lows = [speedup["low"] or speedup["value"] for speedup in speedups]
    highs = [speedup["high"] or speedup["value"] for speedup in speedups]
    low = max(min(0.9, *lows), 0.5 * min(values), 0.0)
    high = min(max(1.1, *highs), 2.0 * max(values))
    margin = 0.04 * (high - low)
    return Axis(low - margin, high + margin)


def make_curves(document: Mapping[str, Any]) -> tuple[Axis, list[Curve]]:
    """Lay out how many answers were there after how many seconds."""
    latencies: dict[str, list[float]] = {side["name"]: [] for side in document["sides"]}
    for run in document["runs"]:
        if run["error"] is None and run["total_s"] > 0:
            latencies[run["side"]].append(run["total_s"])
    axis = Axis(0.0, max(max(times) for times in latencies.values() if times) * 1.02)
    curves = [Curve(name, _steps(sorted(times), axis)) for name, times in latencies.items()]
    return axis, curves


def _steps(times: Sequence[float], axis: Axis) -> str:
    """Return the stairs of a cumulative distribution, thinned where there are very many."""
    points = [(0.0, 100.0)]
    stride = max(1, len(times) // _MAX_CURVE_POINTS)
    for index in (*range(0, len(times) - 1, stride), len(times) - 1):
        x, y = axis.place(times[index]), round(100 - 100 * (index + 1) / len(times), 3)
        points += [(x, points[-1][1]), (x, y)]
    points.append((100.0, 0.0))
    return " ".join(f"{x:g},{y:g}" for x, y in points)


@dataclass(frozen=True, slots=True)
class Point:
    """One number; its interval too, where it has one."""

    x: float
    y: float
    path: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart."""

    name: str
    number: int
    """Which colour."""
    is_dashed: bool
    points: Sequence[Point]

    @property
    def corners(self) -> str:
        """The points for an SVG polyline in a square of 100."""
        return " ".join(f"{point.x:g},{point.y:g}" for point in self.points)


@dataclass(frozen=True, slots=True)
class Chart:
    """Some lines over all levels."""

    title: str
    hint: str
    unit: str
    axis: Axis
    lines: Sequence[Line]
    one: float | None = None
    """The position of 1 ×, in charts of ratios."""

    @property
    def ticks(self) -> list[tuple[float, float]]:
        """Round numbers and how high they stand."""
        return [(tick, self.axis.height(tick)) for tick in self.axis.ticks]


def make_charts(document: Mapping[str, Any]) -> list[Chart]:
    """Lay out all charts; those without numbers are left out."""
    charts = [_chart_gains(document)] if len(document["modes"]) > 1 else []
    charts += [
        _chart_modes(
            document, "Throughput", ("tokens_per_second",), "tokens/s",
            "Tokens of all requests together, per second. Higher is better.",
        ),
        _chart_modes(
            document, "Until the answer is complete", ("latency_p50_s", "latency_p95_s"), "s",
            "Half of the answers are complete within the solid line, 95 % within the dashed one. "
            "Lower is better.",
        ),
        _chart_modes(
            document, "Until the first token", ("ttft_p50_ms", "ttft_p95_ms"), "ms",
            "Half of the first tokens are there within the solid line, 95 % within the dashed one.",
        ),
        _chart_modes(
            document, "Between one piece of text and the next", ("gap_p50_ms", "gap_p95_ms"), "ms",
            "A piece is what the server sends at once: with MTP often several tokens.",
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart is not None]


def _x(index: int, total: int) -> float:
    return round(100 * (index + 0.5) / total, 3)


def _chart_modes(
    document: Mapping[str, Any], title: str, figures: Sequence[str], unit: str, hint: str
) -> Chart | None:
    levels = document["levels"]
    shown = [
        {
            index: level["modes"][mode][figure]
            for index, level in enumerate(levels)
            if mode in level["modes"] and level["modes"][mode][figure] is not None
        }
        for mode, figure in product(document["modes"], figures)
    ]
    highest = max((value for own in shown for value in own.values()), default=0.0)
    if highest <= 0:
        return None
    axis, lines = Axis(0.0, 1.05 * highest), []
    for (mode, figure), own in zip(product(document["modes"], figures), shown, strict=True):
        points = [
            Point(_x(i, len(levels)), axis.height(y), f"/levels/{i}/modes/{mode}/{figure}")
            for i, y in own.items()
        ]
        lines.append(Line(mode, document["modes"].index(mode), figure != figures[0], points))
    return Chart(title, hint, unit, axis, lines)


def _chart_gains(document: Mapping[str, Any]) -> Chart | None:
    """Lay out the speed-up of every class, with its interval."""
    levels = document["levels"]
    found: dict[str, list[tuple[int, str, Mapping[str, Any]]]] = {}
    for index, level in enumerate(levels):
        for number, one in enumerate(level["classes"]):
            if one["value"] is not None:
                path = f"/levels/{index}/classes/{number}"
                found.setdefault(one["task"], []).append((index, path, one))
    values = [one["value"] for own in found.values() for _, _, one in own]
    if not values:
        return None
    axis = Axis(min(0.8, 0.9 * min(values)), max(1.2, 1.1 * max(values)))

    def place(value: float | None) -> float | None:
        return None if value is None else axis.height(value)

    lines = []
    for number, (name, own) in enumerate(sorted(found.items())):
        shift = 1.5 * (number - (len(found) - 1) / 2)  # so that intervals stand side by side
        points = [
            Point(_x(index, len(levels)) + shift, axis.height(one["value"]), path, *interval)
            for index, path, one in own
            for interval in [(place(one["low"]), place(one["high"]))]
        ]
        lines.append(Line(name, number + 1, False, points))
    hint = (
        f"Tokens per second of single answers, MTP {document['modes'][1]} against "
        f"{document['modes'][0]}, the same questions. The bars are 95 % intervals: where one "
        "crosses the dashed line at 1 ×, nothing is proven."
    )
    return Chart("How much faster, by traffic class", hint, "×", axis, lines, place(1.0))
