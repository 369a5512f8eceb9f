"""Stop strings: find the first one in text that arrives in pieces.

In:  text in any cutting, and the stop strings of a request.
Out: text that surely comes before any stop string, and the one that was hit.
However the text is cut, the joined result is the same as searching it whole. Knows no tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """What one piece of text led to."""

    text: str
    """Text that can be shown: no stop string can reach into it any more."""
    hit: str | None
    """The stop string that was found; nothing after it is ever released."""


class StopScanner:
    """The search state of one stream of text.

    The stop string that is complete first wins, so that a stream can end there and then; of two
    that end at the same place, the longer one.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        """Begin a stream; with no stop strings everything is released at once."""
        if not all(stop):
            raise ValueError("a stop string needs at least one character")
        self._stop = stop
        self._held = ""
        self._hit: str | None = None

    def push(self, text: str) -> StopResult:
        """Take more text and return what is now certain to come before any stop string."""
        if self._hit is not None:
            return StopResult("", self._hit)
        if not self._stop:
            return StopResult(text, None)
        # What is held contains no whole stop string, so every match found here is a new one.
        text = self._held + text
        ends = {stop: text.find(stop) + len(stop) for stop in self._stop if stop in text}
        if ends:
            self._hit = min(ends, key=lambda stop: (ends[stop], -len(stop)))
            self._held = ""
            return StopResult(text[: ends[self._hit] - len(self._hit)], self._hit)
        cut = beginning_of(self._stop, text)
        self._held = text[cut:]
        return StopResult(text[:cut], None)

    def flush(self) -> str:
        """End the stream and return what was held back: it was no stop string after all."""
        held, self._held = self._held, ""
        return held


def beginning_of(wanted: Sequence[str], text: str) -> int:
    """Return where the longest end of `text` starts that one of `wanted` could begin with."""
    longest = max(map(len, wanted))
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(one.startswith(text[start:]) for one in wanted):
            return start
    return len(text)
