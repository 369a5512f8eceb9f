"""Where tokens stood before: the longest earlier place of what ends a sequence now.

In:  the tokens of one sequence, which only ever grow. Out: where the tokens that end it stood
before, and how many of them. Asked in every round of every sequence, so the native backend has it
compiled; this version defines the results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_MATCH = 32
"""A match this long is as sure as it gets; looking further back is wasted."""

MAX_PLACES = 16
"""Places that are compared, the latest ones: of "of the" there may be hundreds."""


@dataclass(slots=True)
class PythonIndex:
    """A token index in Python; see `host_ops.TokenIndex`."""

    _ends: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _num_tokens: int = 0

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
            length = 0
            while length < min(end, MAX_MATCH) and history[end - 1 - length] == tail[-1 - length]:
                length += 1
            if length > best_length:
                best_end, best_length = end, length
        return (best_end, best_length) if best_length >= max(min_length, 2) else None

    def _extend(self, history: list[int]) -> None:
        """Index the pairs that end before the newest token, which must not match itself."""
        if len(history) < self._num_tokens:
            raise ValueError("a history only ever grows")
        for end in range(max(self._num_tokens, 2), len(history)):
            self._ends.setdefault((history[end - 2], history[end - 1]), []).append(end)
        self._num_tokens = len(history)
