"""Where things stand in the report's plots, in per cent of their width.

In:  the document of a measurement. Out: marks and ticks for the template, which draws them as SVG.
Per cent instead of pixels, so that one drawing fits a phone and a wide screen. Every mark keeps the
path of its number in the document.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NICE_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MAX_CURVE_POINTS = 200


@dataclass(frozen=True, slots=True)
class Axis:
    """A straight scale from `low` to `high`."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return where a value stands, in per cent, kept inside the plot."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)

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
    """Where 1 × stands."""
    rows: Sequence[ForestRow]


@dataclass(frozen=True, slots=True)
class Curve:
    """The share of one side's answers that were there after so many seconds."""

    side: str
    points: str
    """For an SVG polyline in a square of 100."""


def make_forest(document: Mapping[str, Any]) -> Forest | None:
    """Lay the speed-ups out, overall first; None without any."""
    groups = [("/overall", document["overall"])]
    groups += [(f"/tasks/{i}", group) for i, group in enumerate(document["tasks"])]
    found = [
        (path, group, name, speedup)
        for path, group in groups
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
            low=None if speedup["low"] is None else axis.place(speedup["low"]),
            high=None if speedup["high"] is None else axis.place(speedup["high"]),
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
