"""What a check found: how bad it is, what was seen, and what to do about it.

In:  nothing. Out: `Finding`, the one record every check of the doctor returns, and short ways to
make one. Knows nothing of models, heads or terminals.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from headlong.errors import HeadlongError


class Severity(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as well as it could; or it could not be made sure of."""
    FAULT = "fault"
    """Something is broken."""
    SKIPPED = "skipped"
    """Not checked; `seen` says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    """What was checked, in a word or two."""
    level: Severity
    seen: str
    """What was seen, with numbers, in whole sentences or a short phrase."""
    remedy: str = ""
    """What to do; always there for warnings and faults."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The same for scripts."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name and its numbers, from which it makes its finding."""

    name: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def ok(self, seen: str, more: Mapping[str, Any] | None = None) -> Finding:
        """Return a finding that all is well."""
        return Finding(self.name, Severity.OK, seen, "", {**self.numbers, **(more or {})})

    def warning(self, seen: str, remedy: str, more: Mapping[str, Any] | None = None) -> Finding:
        """Return a finding that something could be better."""
        return Finding(self.name, Severity.WARNING, seen, remedy, {**self.numbers, **(more or {})})

    def fault(self, seen: str, remedy: str, more: Mapping[str, Any] | None = None) -> Finding:
        """Return a finding that something is broken."""
        return Finding(self.name, Severity.FAULT, seen, remedy, {**self.numbers, **(more or {})})


def refused(check: str, error: HeadlongError) -> Finding:
    """Return an error of another package as a fault, with its own message."""
    return Check(check).fault(error.problem, error.remedy)


def skipped(check: str, reason: str) -> Finding:
    """Return that a check could not be made, and why."""
    return Finding(check, Severity.SKIPPED, reason)
