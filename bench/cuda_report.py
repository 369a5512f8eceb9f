"""A report that is on disk as it grows: figures, what failed, and the short of it.

In:  named steps. Out: one JSON file, a line a figure, and a table of what issue 23 asks for.
A step that fails leaves the last lines of its error and lets the next one run; none begins after
time is up.
"""

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """What a measure must reach, and what it may reach."""

    text: str
    least: float
    aim: float

    def holds(self, found: float) -> bool:
        """Tell whether a figure reaches what it must; fewer is better where the aim is lower."""
        return found >= self.least if self.aim > self.least else found <= self.least


GOALS = {
    "plain": Goal("135M, plain, tokens/s", 1400, 2500),
    "auto_code": Goal("135M with head, code, auto, tokens/s", 3000, 6000),
    "code": Goal("auto / plain, code", 2.0, 2.6),
    "chat": Goal("auto / plain, chat", 1.6, 2.0),
    "creative": Goal("auto / plain, creative at 0.7", 1.25, 1.5),
    "bandwidth": Goal("8B, bf16, plain: share of copy bandwidth", 0.75, 0.88),
    "levels": Goal("8B: 4 bits / bf16, plain", 2.2, 3.0),
    "rows_135M": Goal("135M: 8 rows / 1 row", 1.10, 1.03),
    "rows_8B": Goal("8B: 8 rows / 1 row", 1.10, 1.03),
    "draft_step": Goal("135M: draft step / pass over 1 row", 0.10, 0.05),
    "host": Goal("host time the GPU waits for, share of a round", 0.05, 0.01),
    "streams": Goal("135M: 64 streams / 1, plain", 15, 30),
    "auto_64": Goal("135M: auto / off at 64 streams", 0.98, 1.1),
    "prefill": Goal("8B: prefill of 2,048, share of the dense rate", 0.35, 0.60),
}


class Report:
    """Everything that was found so far."""

    def __init__(self, path: Path, seconds: float, only: str | None = None) -> None:
        self._path = path
        self._only = None if only is None else only.split(",")
        self._ends_s = time.monotonic() + seconds
        self._began_s = time.monotonic()
        self.entries: dict[str, Any] = {}
        self.found: dict[str, float] = {}
        self.failed: list[str] = []
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def seconds_left(self) -> float:
        """Time until no step begins any more."""
        return self._ends_s - time.monotonic()

    def run(self, name: str, step: Callable[[], Any], needs_s: float = 0.0) -> None:
        """Make one step, if there is time for it; what it returns goes into the file."""
        if self._only is not None and name not in self._only:
            return
        if self.seconds_left <= needs_s:
            say(f"{name}: left out, {self.seconds_left:.0f} s are left")
            self.entries[name] = "left out"
            self.write()
            return
        began_s = time.monotonic()
        say(f"{name} (from {began_s - self._began_s:.0f} s)")
        try:
            self.entries[name] = step()
        except Exception:
            told = traceback.format_exc(limit=-4)[-1500:]
            self.entries[name] = {"error": told}
            self.failed.append(name)
            say(f"{name} FAILED\n{told}")
        gc.collect()  # engines hold gigabytes, and themselves
        self.entries[f"{name} seconds"] = round(time.monotonic() - began_s, 1)
        self.write()

    def reach(self, goal: str, value: float) -> None:
        """Note what was found of a goal."""
        self.found[goal] = value
        say(f"  = {_told(goal, value)}")
        self.write()

    def write(self) -> None:
        """Write everything; a reader never sees half of it."""
        told = {"found": self.found, "failed": self.failed, **self.entries}
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(told, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(self._path)

    def conclude(self) -> int:
        """Print the short of it; the exit status."""
        say("")
        for goal, value in self.found.items():
            say(_told(goal, value))
        say(f"failed: {', '.join(self.failed) or 'nothing'}; {self._path}")
        return 1 if self.failed else 0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _told(goal: str, value: float) -> str:
    wanted = GOALS[goal]
    verdict = "holds" if wanted.holds(value) else "MISSED"
    return (
        f"{wanted.text:48} {value:9.3f}  at least {wanted.least:g}, aim {wanted.aim:g}: {verdict}"
    )
