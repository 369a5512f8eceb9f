"""Fields of what an engine sent: nothing is taken on trust.

In:  a line of JSON from another process.
Out: its values, each checked for its type when it is read; `GarbledError` names the field at fault.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from headlong.errors import GarbledError

_SHOWN = 80
"""Characters of a wrong value that an error quotes."""


class Fields:
    """One JSON object of an engine's answer; what is null counts as missing."""

    def __init__(self, value: object, name: str = "event") -> None:
        if not isinstance(value, dict):
            raise garbled(name, value, "an object")
        self.own: Mapping[str, Any] = value
        """As they came, not checked."""

    def __contains__(self, name: str) -> bool:
        return self.own.get(name) is not None

    def part(self, name: str) -> "Fields":
        """Return an object inside; an empty one where there is none."""
        value = self.own.get(name)
        return Fields({} if value is None else value, name)

    def items(self, name: str) -> list[Any]:
        """Return a list; an empty one where there is none."""
        value = self.own.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise garbled(name, value, "a list")
        return value

    def parts(self, name: str) -> list["Fields"]:
        """Return a list of objects."""
        return [Fields(value, name) for value in self.items(name)]

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of numbers from 0 up: token ids, counts."""
        return tuple(whole(value, name) for value in self.items(name))

    def whole(self, name: str) -> int | None:
        """Return a number from 0 up, if it is there."""
        value = self.own.get(name)
        return None if value is None else whole(value, name)

    def text(self, name: str) -> str | None:
        """Return a text, if it is there."""
        value = self.own.get(name)
        if value is not None and not isinstance(value, str):
            raise garbled(name, value, "a text")
        return value

    def number(self, name: str) -> float:
        """Return a number that has to be there."""
        return number(self.own.get(name), name)

    def flag(self, name: str) -> bool:
        """Return a truth value; what is missing is false."""
        value = self.own.get(name)
        if value is not None and not isinstance(value, bool):
            raise garbled(name, value, "true or false")
        return bool(value)


def read_event(data: str) -> Fields:
    """Return the JSON object that an engine sent."""
    try:
        return Fields(json.loads(data, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        raise garbled("event", data, "a JSON object") from None


def whole(value: object, name: str) -> int:
    """Return a value that must be a whole number from 0 up."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise garbled(name, value, "a whole number from 0 up")
    return value


def number(value: object, name: str) -> float:
    """Return a value that must be a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type] # it is a number here
        raise garbled(name, value, "a number")
    return float(value)  # type: ignore[arg-type] # as above


def garbled(name: str, value: object, wanted: str) -> GarbledError:
    """Return the error about a value that is not what it has to be."""
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    problem = f"The engine sent the {name} {shown}; it must be {wanted}."
    return GarbledError(problem, "Is it the kind of engine that --engine names?")


def _refuse_constant(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are no JSON
