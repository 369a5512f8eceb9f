"""Replacements: changes that an answer has made while copying, to draft them again.

An answer that renames something copies the text up to the old name, writes the new one, and
continues after the old one. From then on the old tokens are drafted as the new ones. A pair is
forgotten when its old tokens are copied unchanged.
In:  the history of a sequence and the positions of matches. Out: tokens of a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

MIN_COPY = 6
"""Equal tokens from which on a sequence counts as copying."""

MIN_OTHER_COPY = 8
"""Equal tokens from which on a copy counts as continuing at another position."""

MAX_CHANGE = 24
"""Most tokens of the source, and of the answer, in one change."""

MAX_UNMATCHED = 32
"""Tokens without a match after which a copy is over."""

MAX_PAIR_LENGTH = 8
"""Most tokens of either side of a pair."""

MAX_PAIRS = 32
"""Most pairs that are kept; the oldest are dropped."""

_MAX_EQUAL = 32

Tokens = tuple[int, ...]


@dataclass(slots=True)
class Replacements:
    """Pairs of old and new tokens that one sequence has shown."""

    pairs: dict[Tokens, Tokens] = field(default_factory=dict)
    _source: int | None = None
    """Where the copy comes from: the place of the token that would follow."""
    _reached: int = 0
    """How many tokens of the history are accounted for by that place."""
    _num_seen: int = 0

    def observe(self, history: Sequence[int], end: int) -> None:
        """Learn from a match of the end of the history with the tokens before `end`."""
        self._forget_copied(history)
        num_known = len(history)
        if self._source is None:
            if _count_equal(history, end) >= MIN_COPY:
                self._source, self._reached = end, num_known
            return
        while self._reached < num_known and history[self._source] == history[self._reached]:
            self._source += 1
            self._reached += 1
        if self._reached == num_known:
            return
        num_equal = _count_equal(history, end)
        # Where both agree again, at the earliest where the copy broke off.
        begin = max(num_known - num_equal, self._reached)
        resumed = end - (num_known - begin)
        is_near = 0 <= resumed - self._source <= MAX_CHANGE and begin - self._reached <= MAX_CHANGE
        if num_equal and is_near:
            old, new = history[self._source : resumed], history[self._reached : begin]
            self._learn(tuple(old), tuple(new))
        if (num_equal and is_near) or num_equal >= MIN_OTHER_COPY:
            self._source, self._reached = end, num_known
        elif num_known - self._reached > MAX_UNMATCHED:
            self._source = None

    def copy(
        self, history: Sequence[int], assumed: Sequence[int], place: int, count: int
    ) -> list[int]:
        """Return what follows a place in history and what is assumed behind it, replaced.

        Where it runs into the end, it repeats itself.
        """
        # Of a long history the piece that may be read is enough.
        stop = place + (MAX_PAIR_LENGTH + 1) * count
        text = list(history[place:stop])
        if stop >= len(history):
            text += assumed[max(0, place - len(history)) :]
        num_known, at = len(text), 0
        firsts = {old[0] for old in self.pairs}
        while at < len(text) < num_known + count:
            old = self._old_at(text, at) if text[at] in firsts else None
            text += (text[at],) if old is None else self.pairs[old]
            at += 1 if old is None else len(old)
        return text[num_known : num_known + count]

    def _old_at(self, text: Sequence[int], place: int) -> Tokens | None:
        """Return the longest old tokens that stand at a place."""
        found = [old for old in self.pairs if old[0] == text[place]]
        return max(
            (old for old in found if tuple(text[place : place + len(old)]) == old),
            key=len,
            default=None,
        )

    def _learn(self, old: Tokens, new: Tokens) -> None:
        if old and len(old) <= MAX_PAIR_LENGTH and len(new) <= MAX_PAIR_LENGTH:
            self.pairs.pop(old, None)
            self.pairs[old] = new
            if len(self.pairs) > MAX_PAIRS:
                del self.pairs[next(iter(self.pairs))]

    def _forget_copied(self, history: Sequence[int]) -> None:
        """Forget pairs whose old tokens the answer has written since the last look."""
        for old in list(self.pairs):
            first = max(0, self._num_seen - len(old) + 1)
            places = range(first, len(history) - len(old) + 1)
            if any(
                history[at] == old[0] and tuple(history[at : at + len(old)]) == old for at in places
            ):
                del self.pairs[old]
        self._num_seen = len(history)


def _count_equal(history: Sequence[int], end: int) -> int:
    """Return how many tokens before `end` are those that end the history."""
    length, most = 0, min(end, _MAX_EQUAL)
    while length < most and history[end - 1 - length] == history[-1 - length]:
        length += 1
    return length
