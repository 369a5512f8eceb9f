"""A report of training that nobody sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class QuietReport:
    """Remembers what was said."""

    lines: list[str] = field(default_factory=list)
    numbers: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)

    def progress(self, stage: str, share: float, numbers: Mapping[str, Any]) -> None:
        """Keep the numbers."""
        self.numbers.append({"stage": stage, "share": share, **numbers})
