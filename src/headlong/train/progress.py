"""Progress reports of a run: to a terminal, a log file or a test."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Report(Protocol):
    """Receives messages and progress."""

    def say(self, text: str) -> None:
        """Take a message for users."""

    def progress(self, stage: str, share: float, numbers: Mapping[str, Any]) -> None:
        """Take the completed share of a stage, 0…1, with current figures."""


class LoggedReport:
    """Passes everything on, and writes progress to `log.jsonl` for plots."""

    def __init__(self, inner: Report, path: Path) -> None:
        self._inner = inner
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        """Take a message for users."""
        self._inner.say(text)

    def progress(self, stage: str, share: float, numbers: Mapping[str, Any]) -> None:
        """Log the figures and pass them on."""
        record = {"stage": stage, "time": round(time.time(), 2), "share": share, **numbers}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._inner.progress(stage, share, numbers)


def read_log(path: Path, stage: str) -> list[dict[str, Any]]:
    """Read the log records of a stage; a line cut off by a kill is skipped."""
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record.get("stage") == stage:
            records.append(record)
    return records
