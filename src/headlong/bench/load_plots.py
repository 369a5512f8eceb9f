"""Where things stand in the plots of a load, in per cent of their width and height.

In:  the document of a load. Out: charts for the template, which draws them as SVG. Levels stand at
even distances, whatever their numbers. Every point keeps the path of its number in the document.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headlong.bench.plots import Axis


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
    """Where 1 × stands, in charts of ratios."""

    @property
    def ticks(self) -> list[tuple[float, float]]:
        """Round numbers and how high they stand."""
        return [(tick, round(100 - self.axis.place(tick), 3)) for tick in self.axis.ticks]


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
    """Lay out figures of every mode."""
    levels = document["levels"]
    found = {
        (mode, figure): [
            (index, level["modes"][mode][figure])
            for index, level in enumerate(levels)
            if mode in level["modes"] and level["modes"][mode][figure] is not None
        ]
        for mode in document["modes"]
        for figure in figures
    }
    values = [value for own in found.values() for _, value in own]
    if not values or max(values) <= 0:
        return None
    axis = Axis(0.0, 1.05 * max(values))
    lines = [
        Line(
            name=mode,
            number=document["modes"].index(mode),
            is_dashed=figure != figures[0],
            points=[
                Point(
                    _x(index, len(levels)),
                    round(100 - axis.place(value), 3),
                    f"/levels/{index}/modes/{mode}/{figure}",
                )
                for index, value in own
            ],
        )
        for (mode, figure), own in found.items()
    ]
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
        return None if value is None else round(100 - axis.place(value), 3)

    lines = []
    for number, (name, own) in enumerate(sorted(found.items())):
        shift = 1.5 * (number - (len(found) - 1) / 2)  # so that intervals stand side by side
        points = [
            Point(
                _x(index, len(levels)) + shift,
                round(100 - axis.place(one["value"]), 3),
                path,
                place(one["low"]),
                place(one["high"]),
            )
            for index, path, one in own
        ]
        lines.append(Line(name, number + 1, False, points))
    hint = (
        f"Tokens per second of single answers, MTP {document['modes'][1]} against "
        f"{document['modes'][0]}, the same questions. The bars are 95 % intervals: where one "
        "crosses the dashed line at 1 ×, nothing is proven."
    )
    return Chart("How much faster, by traffic class", hint, "×", axis, lines, place(1.0))
