"""Token index: find the longest earlier occurrence of a sequence's last tokens.

In:  the tokens of one sequence, which only ever grow. Out: the position and length of the match. An
edit interrupts a copy, which then continues nearby. So near the expected position, one equal token
counts as much as several elsewhere.
It is used in every round of every sequence, so the native backend has a compiled version; this one
defines the results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_MATCH = 32
"""Longest match that is distinguished; a longer one is no more certain."""

MAX_PLACES = 16
"""Places that are compared, the latest ones: of "of the" there may be hundreds."""

COPY_LENGTH = 6
"""From this many equal tokens on, a sequence copies."""

COPY_BONUS = 3
"""Where a copy may go on, a match counts so many tokens more. Too few for a drafter that has a head
to ask, and asks for six tokens, to leave the head for less than three equal ones."""

COPY_REACH = 16
"""How many tokens an edit may add or drop for the copy to be found again."""

COPY_FORGOTTEN = 32
"""A copy that was not found again for so many tokens is over."""


@dataclass(slots=True)
class PythonIndex:
    """A token index in Python; see `host_ops.TokenIndex`."""

    _ends: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _num_tokens: int = 0
    _copied: tuple[int, int] | None = None
    """The end of the last match of a copy, and how many tokens there were then."""

    def find(
        self, history: list[int], min_length: int, assumed: Sequence[int]
    ) -> tuple[int, int] | None:
        """Return the longest match; see `TokenIndex`."""
        self._extend(history)
        tail = [*history[-MAX_MATCH:], *assumed]
        if len(tail) < 2:
            return None
        places = self._ends.get((tail[-2], tail[-1]), [])
        best_end = best_length = 0
        for end in reversed(places[-MAX_PLACES:]):
            length = _count_equal(history, end, tail)
            if length > best_length:
                best_end, best_length = end, length
        num_equal = best_length
        end, length = self._best_near_copy(history, tail, len(history) + len(assumed))
        counted = min(length + COPY_BONUS, MAX_MATCH)
        if length and counted > best_length:
            best_end, best_length, num_equal = end, counted, length
        if num_equal >= COPY_LENGTH and not assumed:
            self._copied = best_end, len(history)
        return (best_end, best_length) if best_length >= max(min_length, 2) else None

    def _best_near_copy(
        self, history: list[int], tail: list[int], num_tokens: int
    ) -> tuple[int, int]:
        """Return the longest match around the place the copy would have come to, nearest first."""
        end, num_before = self._copied or (0, 0)
        if not end or num_tokens > num_before + COPY_FORGOTTEN:
            return 0, 0
        best_end = best_length = 0
        for distance in range(COPY_REACH + 1):
            expected = end + num_tokens - num_before
            for place in (expected - distance, expected + distance):
                length = _count_equal(history, place, tail) if 0 < place < len(history) else 0
                if length > best_length:
                    best_end, best_length = place, length
        return best_end, best_length

    def _extend(self, history: list[int]) -> None:
        """Index the pairs that end before the newest token, which must not match itself."""
        if len(history) < self._num_tokens:
            raise ValueError("a history only ever grows")
        for end in range(max(self._num_tokens, 2), len(history)):
            self._ends.setdefault((history[end - 2], history[end - 1]), []).append(end)
        self._num_tokens = len(history)


def _count_equal(history: list[int], end: int, tail: list[int]) -> int:
    """Return how many tokens before `end` are those that end the tail."""
    length, most = 0, min(end, MAX_MATCH, len(tail))
    while length < most and history[end - 1 - length] == tail[-1 - length]:
        length += 1
    return length
