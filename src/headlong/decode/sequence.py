"""The state of one stream of tokens while it is being decoded.

The engine makes these; prefill and round move them on. Between rounds one thing always holds: every
token but the newest is in the backbone's cache. A sequence that lost its caches regains them by
prefill over the tokens it has; nothing is picked anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headlong.arrays import FloatArray
from headlong.cache.kv_cache import KVCache
from headlong.decode.sampling import Sampler
from headlong.decode.stats import DecodeStats, Timings
from headlong.drafters.drafter import Bar, DraftState

MAX_FOREIGN = 1024
"""Rows of others that waiting rows may keep alive before they are copied out of their passes."""


class Span(NamedTuple):
    """Rows of a pass that belong to one sequence."""

    features: FloatArray  # (N, F) what the drafter reads of the whole pass
    first: int
    stop: int

    def first_rows(self, num_rows: int) -> "Span":
        """Return the leading ones of the rows."""
        stop = self.first + num_rows
        return self if stop == self.stop else Span(self.features, self.first, stop)

    def read(self) -> FloatArray:
        """Return the features of the rows alone: (n, F)."""
        return self.features[self.first : self.stop]


@dataclass(slots=True)
class Backlog:
    """The newest rows of a sequence's cache, which wait for its drafter, in order."""

    spans: list[Span] = field(default_factory=list)
    num_rows: int = 0
    num_foreign: int = 0
    """Rows of others that are kept alive with these, as they lie in the same passes."""
    _bytes_per_row: int = 0
    _num_own: int = 0
    """Leading spans that keep no row of others alive: copied, or the whole of a pass."""

    def add(self, span: Span) -> None:
        """Let rows wait; now and then all new ones are copied, which is cheaper than each alone."""
        num_rows = span.stop - span.first
        if not self.num_rows:
            self._bytes_per_row = span.features.nbytes // len(span.features)
        if num_rows == len(span.features) and self._num_own == len(self.spans):
            self._num_own += 1
        self.spans.append(span)
        self.num_rows += num_rows
        self.num_foreign += len(span.features) - num_rows
        if self.num_foreign > MAX_FOREIGN:
            self.compact()

    def compact(self) -> None:
        """Copy rows out of passes that hold others' rows as well."""
        loose = self.spans[self._num_own :]
        if self.num_foreign:
            rows = np.concatenate([span.read() for span in loose])
            self.spans[self._num_own :] = [Span(rows, 0, len(rows))]
            self._num_own += 1
            self.num_foreign = 0

    def clear(self) -> None:
        """Let no row wait any more, for whoever holds this backlog."""
        self.spans, self.num_rows, self.num_foreign = [], 0, 0
        self._bytes_per_row, self._num_own = 0, 0

    def bytes_for(self, num_more_rows: int) -> int:
        """Return the bytes it will take with so many more rows, if any wait."""
        return (self.num_rows + num_more_rows) * self._bytes_per_row

    def copy(self) -> "Backlog":
        """Return a backlog of its own with the same rows."""
        counts = self.num_rows, self.num_foreign, self._bytes_per_row, self._num_own
        return Backlog(list(self.spans), *counts)

    def first_rows(self, num_rows: int) -> "Backlog":
        """Return a backlog of its own with the leading ones of the rows."""
        found = Backlog()
        for span in self.spans:
            num_left = num_rows - found.num_rows
            if num_left <= 0:
                break
            found.add(span.first_rows(min(num_left, span.stop - span.first)))
        found.compact()
        return found


@dataclass(slots=True)
class DecodingSequence:
    """Tokens, cache, sampler and drafter's memory of one sequence."""

    token_ids: list[int]
    """Prompt and answer so far."""
    cache: KVCache
    sampler: Sampler
    draft_state: DraftState | None
    """The drafter's memory; None when this sequence never drafts."""
    off_reason: str | None = None
    """Why this sequence does not draft though it was asked to: no drafter, or one that failed."""
    stats: DecodeStats = field(default_factory=DecodeStats)
    timings: Timings = field(default_factory=Timings)
    has_begun: bool = False
    """Whether the answer has a first token."""
    bars: Mapping[str, Bar] = field(default_factory=dict)
    """How sure each drafter must be for one more token to pay."""
    is_resting: bool = False
    """Whether no draft is wanted now, so that the drafter may observe rows later."""
    only_copies: bool = False
    """Whether drafts may only be copies of what stood before, which take no model."""
    unobserved: Backlog = field(default_factory=Backlog)
    """Rows of the cache that the drafter has not looked at yet."""

    @property
    def num_rows_left(self) -> int:
        """Rows to run before a round can: the prompt, or what a set-back sequence had computed."""
        return len(self.token_ids) - self.has_begun - self.cache.length

    @property
    def num_observed(self) -> int:
        """Rows the drafter's memory holds."""
        return self.cache.length - self.unobserved.num_rows
