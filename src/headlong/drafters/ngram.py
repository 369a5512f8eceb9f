"""N-gram lookup: what followed the last time these same tokens stood here?

Costs next to nothing and wins where an answer copies: retrieval, edits, code, JSON. The drafter
keeps, per sequence, where every n-gram of prompt and answer last ended, finds the longest one that
ends the history now, and proposes the tokens that followed it then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headlong.arrays import FloatArray
from headlong.drafters.drafter import NO_DRAFT, Draft, DraftAsk, Settled, forced_draft, num_worth
from headlong.models.hidden import HiddenRows

MIN_MATCH = 2
"""Shorter matches are chance."""

MAX_INDEXED = 6
"""Longest n-gram kept in the index; longer matches are found by walking back from it."""

MAX_MATCH = 32
"""A match this long is as sure as it gets; looking further back is wasted."""


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier place where the history's last `length` tokens stood, ending before `end`."""

    end: int
    length: int


@dataclass(slots=True)
class NgramIndex:
    """Where each n-gram of one sequence last ended."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_indexed: int = 0

    def extend(self, history: Sequence[int]) -> None:
        """Index the n-grams that end before the newest token, which must not match itself."""
        for end in range(self.num_indexed + 1, len(history)):
            for size in range(MIN_MATCH, min(MAX_INDEXED, end) + 1):
                self.ends[tuple(history[end - size : end])] = end
        self.num_indexed = max(self.num_indexed, len(history) - 1)

    def find(self, history: Sequence[int]) -> Match | None:
        """Return the longest earlier occurrence of the history's ending."""
        for size in range(min(MAX_INDEXED, len(history)), MIN_MATCH - 1, -1):
            end = self.ends.get(tuple(history[-size:]))
            if end is not None:
                return Match(end, _match_length(history, end))
        return None


class NgramDrafter:
    """Drafts by copying what followed the longest earlier match."""

    name = "ngram"
    tap_layers: tuple[int, ...] = ()

    def __init__(self, min_match: int = MIN_MATCH) -> None:
        self.min_match = min_match

    def begin(self) -> NgramIndex:
        """Return an empty index for a new sequence."""
        return NgramIndex()

    def features(self, hidden: HiddenRows) -> FloatArray:
        """Return nothing: the history comes with every ask."""
        return hidden.nothing

    def observe(self, settled: Sequence[Settled]) -> None:
        """Need nothing from the backbone: the history comes with every ask."""

    def draft(self, asks: Sequence[DraftAsk]) -> list[Draft]:
        """Copy what followed the longest match, for every ask that has one."""
        return [self._draft_one(ask) for ask in asks]

    def _draft_one(self, ask: DraftAsk) -> Draft:
        index: NgramIndex = ask.state
        index.extend(ask.history)
        assumed = [*ask.history, *ask.forced] if ask.forced else ask.history
        match = index.find(assumed)
        if match is None or match.length < self.min_match:
            return NO_DRAFT
        return forced_draft(ask.forced) + propose(assumed, match, ask, len(ask.forced))

    def share(self, state: NgramIndex, num_rows: int) -> NgramIndex:
        """Return an empty index: the history comes whole with the first ask."""
        return NgramIndex()

    def num_bytes(self, state: NgramIndex, num_rows: int = 0) -> int:
        """Return 0: there are no caches."""
        return 0


def propose(history: Sequence[int], match: Match, ask: DraftAsk, num_before: int = 0) -> Draft:
    """Copy what followed a match; where it runs into the history's end, it repeats itself.

    The first `num_before` tokens of the ask are served already.
    """
    # The longer the match, the likelier it goes on: 2 tokens agree by habit, 8 by copying.
    prob = match.length / (match.length + 1.0)
    num_tokens = num_worth([prob] * (ask.num_tokens - num_before), ask.bar(NgramDrafter.name))
    period = len(history) - match.end
    copied = tuple(history[match.end + offset % period] for offset in range(num_tokens))
    return Draft(copied, (prob,) * num_tokens, (NgramDrafter.name,) * num_tokens)


def _match_length(history: Sequence[int], end: int) -> int:
    length = 0
    while length < min(end, MAX_MATCH) and history[end - 1 - length] == history[-1 - length]:
        length += 1
    return length
