"""Who hears how a run goes: a terminal, a log file, a test."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Report(Protocol):
    """Hears of progress."""

    def say(self, text: str) -> None:
        """Take one line for people."""

    def progress(self, stage: str, share: float, numbers: Mapping[str, Any]) -> None:
        """Take how far a stage is, 0…1, with the numbers of the moment."""


class LoggedReport:
    """Passes everything on, and keeps the numbers in `log.jsonl` for plots."""

    def __init__(self, inner: Report, path: Path) -> None:
        self._inner = inner
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        """Take one line for people."""
        self._inner.say(text)

    def progress(self, stage: str, share: float, numbers: Mapping[str, Any]) -> None:
        """Log the numbers and pass them on."""
        record = {"stage": stage, "time": round(time.time(), 2), "share": share, **numbers}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._inner.progress(stage, share, numbers)


def read_log(path: Path, stage: str) -> list[dict[str, Any]]:
    """Read what a stage logged; a line cut off by a kill is passed over."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record.get("stage") == stage:
            records.append(record)
    return records
