"""Kinds of settings: how their text is parsed, and which values are allowed.

In:  a value from a flag, the environment or a TOML file: text, or already a number, truth or list.
Out: the value a `ServerSettings` holds; a ValueError where it is not allowed. Which setting it is
     and where the value came from is told by those who ask.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headlong.config import MAX_DRAFT_TOKENS, check_mtp
from headlong.errors import RequestError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", re.IGNORECASE)
_LARGEST = sys.float_info.max
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True}
_TRUTHS |= {"false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of value."""

    allowed: str
    """What may be given, in words that follow "It must be"."""
    read: Callable[[object], Any]
    """Return the value; raise ValueError where it is not allowed."""
    metavar: str = "VALUE"
    """The value's name in a command's help."""
    is_truth: bool = False
    """Whether a flag for it needs no value: `--log-prompts`, `--no-log-prompts`."""
    is_list: bool = False
    """Whether a flag for it may be repeated."""


def whole(low: int, high: int | None = None) -> Kind:
    """Return the kind of whole numbers from `low` to `high`."""
    return Kind(f"a whole number {_range(low, high)}", _read_number(int, int, low, high), "N")


def seconds(low: float, high: float | None = None) -> Kind:
    """Return the kind of durations in seconds."""
    read = _read_number(lambda text: float(text.removesuffix("s")), float, low, high)
    return Kind(f"seconds, a number {_range(low, high)}", read, "S")


def size(low: int) -> Kind:
    """Return the kind of sizes in bytes; text may use units: 500 MB, 8MiB, 2g."""
    allowed = f"a size of {low} bytes or more, like 8000000, 8MB or 8MiB"
    return Kind(allowed, _read_number(_parse_size, int, low, None), "SIZE")


def truth() -> Kind:
    """Return the kind of yes and no."""

    def read(value: object) -> bool:
        known = _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else value
        if not isinstance(known, bool):
            raise ValueError
        return known

    return Kind("true or false", read, is_truth=True)


def word(*known: str) -> Kind:
    """Return the kind of one of several words."""
    names = "|".join(map(re.escape, known))
    return text(f"one of {', '.join(known)}", names, f"{{{','.join(known)}}}")


def text(allowed: str, pattern: str = r"\S.*", metavar: str = "NAME") -> Kind:
    """Return the kind of texts that match a pattern."""

    def read(value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValueError
        return value

    return Kind(allowed, read, metavar)


def texts(allowed: str, pattern: str, metavar: str) -> Kind:
    """Return the kind of lists of texts; one text is split at commas."""
    one = text(allowed, pattern)

    def read(value: object) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
            raise ValueError
        parts = [part.strip() for item in items for part in item.split(",")]
        return tuple(one.read(part) for part in parts if part)

    return Kind(allowed, read, metavar, is_list=True)


def mtp() -> Kind:
    """Return the kind of draft policies."""

    def read(value: object) -> Any:
        is_number = isinstance(value, str) and value.strip().isdecimal()
        try:
            return check_mtp(int(str(value)) if is_number else value)
        except RequestError as error:
            raise ValueError from error

    allowed = f'"auto", "off", or a number of draft tokens from 1 to {MAX_DRAFT_TOKENS}'
    return Kind(allowed, read, "MODE")


def optional(kind: Kind, none_word: str = "none") -> Kind:
    """Return a kind that may also be absent: None, or the word for it."""

    def read(value: object) -> Any:
        is_none = value is None or (isinstance(value, str) and value.strip().lower() == none_word)
        return None if is_none else kind.read(value)

    return replace(kind, allowed=f'{kind.allowed}, or "{none_word}"', read=read)


def _read_number(
    parse: Callable[[str], float], number: type[float], low: float, high: float | None
) -> Callable[[object], Any]:
    def read(value: object) -> float:
        found = parse(value.strip()) if isinstance(value, str) else value
        if isinstance(found, bool) or not isinstance(found, int | number):
            raise ValueError
        if not low <= found <= (_LARGEST if high is None else high):
            raise ValueError
        return number(found)

    return read


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def _range(low: float, high: float | None) -> str:
    return f"of at least {low:g}" if high is None else f"from {low:g} to {high:g}"
