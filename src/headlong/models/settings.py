"""Read single values out of a checkpoint's metadata, refusing what is absent or of the wrong kind.

GGUF keeps flat dotted keys (`llama.rope.freq_base`), config.json nests records; both are asked for
with dotted names here.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headlong.errors import CheckpointError


class Settings:
    """A view of a checkpoint's metadata under some dotted prefix."""

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self._values = values
        self._path = path
        self._prefix = prefix

    def under(self, prefix: str) -> "Settings":
        """Return the settings whose names begin with `prefix`."""
        return Settings(self._values, self._path, self._prefix + prefix)

    def replaced(self, values: Mapping[str, Any]) -> "Settings":
        """Return the same settings with other values for some names."""
        own = {self._prefix + name: value for name, value in values.items()}
        return Settings({**self._values, **own}, self._path, self._prefix)

    def value(self, name: str) -> Any:
        """Return a value of any kind, None when there is none."""
        return self._find(name)

    def has(self, name: str) -> bool:
        """Tell whether a value is there and not null."""
        return self._find(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 0."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._refusal(name, value, "a whole number, 0 or more")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self._value(name, default)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not math.isfinite(value)
        ):
            raise self._refusal(name, value, "a finite number")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._refusal(name, value, "a string")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a yes or no."""
        found = self._find(name)
        return default if found is None else bool(found)

    def items(self, name: str) -> list[Any]:
        """Return a list, empty when there is none."""
        value = self._value(name, [])
        if not isinstance(value, list):
            raise self._refusal(name, value, "a list")
        return value

    def _find(self, name: str) -> Any:
        full_name = self._prefix + name
        if full_name in self._values:
            return self._values[full_name]
        found: Any = self._values
        for part in full_name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def _value(self, name: str, default: Any) -> Any:
        found = self._find(name)
        if found is not None:
            return found
        if default is None:
            raise self._refusal(name, "absent", "given")
        return default

    def _refusal(self, name: str, value: Any, expected: str) -> CheckpointError:
        shown = repr(value) if len(repr(value)) < 80 else f"{repr(value)[:80]}…"
        return CheckpointError(
            f"{self._path}: {self._prefix}{name} is {shown}; it should be {expected}.",
            "The model's metadata is damaged or of an unknown kind; pull the model again.",
        )
