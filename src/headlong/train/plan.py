"""Plan: the estimated time and memory of a run.

In:  for each stage the amount of work, and seconds and bytes by purpose, from `estimate.py`.
Out: a table, a dictionary for JSON, and the recipe keys to lower where memory does not suffice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_GB = 1e9
_COUNTS = ("answers", "tokens", "steps")


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The estimate of one stage."""

    stage: str
    work: Mapping[str, int]
    """Answers, tokens and steps."""
    seconds: Mapping[str, float]
    """By activity."""
    num_bytes: Mapping[str, int]
    """By purpose: model, head, optimiser, activations, caches."""
    lower: tuple[str, ...]
    """Recipe keys that determine most of the memory."""
    disk_bytes: int = 0
    """Bytes of hidden states that it writes to the work folder, if there is room."""

    @property
    def total_seconds(self) -> float:
        """Seconds of the whole stage."""
        return sum(self.seconds.values())

    @property
    def total_bytes(self) -> int:
        """Bytes that are needed at the same time."""
        return sum(self.num_bytes.values())

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "stage": self.stage,
            **self.work,
            "seconds": round(self.total_seconds, 1),
            "seconds_by": {name: round(one, 1) for name, one in self.seconds.items()},
            "bytes": self.total_bytes,
            "bytes_by": dict(self.num_bytes),
            "disk_bytes": self.disk_bytes,
        }


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """The estimates of all stages of one call."""

    device: str
    available_bytes: int | None
    """Memory for model and training together; None if the system does not report it."""
    time_limit_s: float
    stages: tuple[StagePlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "device": self.device,
            "available_bytes": self.available_bytes,
            "stages": [one.to_dict() for one in self.stages],
            "notes": self.notes(),
        }

    def table(self) -> str:
        """Return a table as text."""
        free = self.available_bytes
        memory = "" if free is None else f", {free / _GB:.1f} GB of memory"
        parts = list(dict.fromkeys(name for one in self.stages for name in one.num_bytes))
        rows = [["stage", *_COUNTS, "time", *(f"{name} GB" for name in parts), "total GB"]]
        for one in self.stages:
            counts = [f"{one.work[name]:,}" if name in one.work else "–" for name in _COUNTS]
            sizes = [one.num_bytes.get(name) for name in parts]
            cells = ["–" if size is None else _size(size) for size in sizes]
            time = _duration(one.total_seconds)
            rows.append([one.stage, *counts, time, *cells, _size(one.total_bytes)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"estimated time and memory on {self.device}{memory}"]
        for row in rows:
            pairs = list(zip(row, widths, strict=True))
            cells = [cell.rjust(width) for cell, width in pairs[1:]]
            lines.append("  ".join([pairs[0][0].ljust(pairs[0][1]), *cells]))
        return "\n".join([*lines, *map(_dominant, self.stages), *self.notes()])

    def notes(self) -> list[str]:
        """Return what else to know: disk, too little memory, a limit that ends the call early."""
        notes = []
        for one in self.stages:
            if one.disk_bytes:
                notes.append(
                    f"{one.stage} writes about {one.disk_bytes / _GB:.1f} GB of hidden states to "
                    "the work folder, at most half of the free disk."
                )
            free = self.available_bytes
            if free is not None and one.total_bytes > free:
                keys = ", ".join(one.lower)
                notes.append(
                    f"{one.stage} needs about {one.total_bytes / _GB:.1f} GB, and "
                    f"{free / _GB:.1f} GB are available: lower {keys} in the recipe."
                )
        seconds = sum(one.total_seconds for one in self.stages)
        if seconds > self.time_limit_s:
            notes.append(
                f"This call ends after {_duration(self.time_limit_s)} (--time-limit). Repeat the "
                "command to continue."
            )
        return notes


def _dominant(one: StagePlan) -> str:
    """Return a line about what takes most of a stage's time and memory."""
    slowest = max(one.seconds, key=lambda name: one.seconds[name])
    largest = max(one.num_bytes, key=lambda name: one.num_bytes[name])
    share = one.seconds[slowest] / max(one.total_seconds, 1e-9)
    part = one.num_bytes[largest] / max(one.total_bytes, 1)
    time = f"{share:.0%} of the time for {slowest}"
    return f"{one.stage}: {time}, {part:.0%} of the memory for {largest}"


def _size(num_bytes: int) -> str:
    gigabytes = num_bytes / _GB
    return f"{gigabytes:.2f}" if gigabytes >= 0.01 else "<0.01"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds >= 2 * 24 * 3600:
        return f"{seconds / (24 * 3600):,.0f} days"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
