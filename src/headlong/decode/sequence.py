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
from headlong.ops.packed_rows import PackedRows, pack_rows

MAX_FOREIGN = 1024
"""Rows of others that waiting rows may keep alive before they are copied out of their passes."""

FLOAT_BYTES = 4


class Span(NamedTuple):
    """Rows that belong to one sequence, of a pass or of packed ones."""

    features: FloatArray | PackedRows  # (N, F) what the drafter reads of the whole pass
    first: int
    stop: int

    def first_rows(self, num_rows: int) -> "Span":
        """Return the leading ones of the rows."""
        stop = self.first + num_rows
        return self if stop == self.stop else Span(self.features, self.first, stop)

    def read(self) -> FloatArray:
        """Return the features of the rows alone: (n, F)."""
        if isinstance(self.features, np.ndarray):
            return self.features[self.first : self.stop]
        return self.features.read(self.first, self.stop)

    @property
    def is_packed(self) -> bool:
        """Whether the rows are no longer those of a pass."""
        return not isinstance(self.features, np.ndarray)

    @property
    def num_bytes(self) -> int:
        """The bytes of the rows alone."""
        return (self.stop - self.first) * (self.features.nbytes // len(self.features))


@dataclass(slots=True)
class Backlog:
    """The newest rows of a sequence's cache, which wait for its drafter, in order."""

    spans: list[Span] = field(default_factory=list)
    num_rows: int = 0
    num_foreign: int = 0
    """Rows of others that are kept alive with these, as they lie in the same passes."""
    _num_own: int = 0
    """Leading spans that keep no row of others alive: packed, or the whole of a pass."""
    _num_bytes: int = 0
    _bytes_per_row: int = 0
    """Of one more row, which is not packed."""

    def add(self, span: Span) -> None:
        """Let rows wait; now and then all new ones are packed, which is cheaper than each alone."""
        num_rows = span.stop - span.first
        if not self.spans:
            self._bytes_per_row = FLOAT_BYTES * span.features.shape[1]
        if span.is_packed:
            num_others = 0
            self._num_bytes += span.num_bytes
        else:
            num_others = len(span.features) - num_rows
            self._num_bytes += num_rows * self._bytes_per_row
        if num_others == 0 and self._num_own == len(self.spans):
            self._num_own += 1
        self.spans.append(span)
        self.num_rows += num_rows
        self.num_foreign += num_others
        if self.num_foreign > MAX_FOREIGN:
            self.leave_passes()

    def leave_passes(self) -> None:
        """Pack the rows of passes that hold others' rows as well."""
        if self.num_foreign:
            self._pack(self._num_own)

    def pack(self) -> None:
        """Pack all rows, as nobody knows for how long they will wait."""
        is_packed = [span.is_packed for span in self.spans]
        self._pack([*is_packed, False].index(False))

    def _pack(self, first: int) -> None:
        """Pack the rows of all spans from `first` on."""
        loose = self.spans[first:]
        if loose:
            packed = pack_rows([span.read() for span in loose])
            self.spans[first:] = [Span(packed, 0, len(packed))]
        self._num_own, self.num_foreign = len(self.spans), 0
        self._num_bytes = sum(span.num_bytes for span in self.spans)

    def clear(self) -> None:
        """Let no row wait any more, for whoever holds this backlog."""
        self.spans, self.num_rows, self.num_foreign = [], 0, 0
        self._num_own, self._num_bytes, self._bytes_per_row = 0, 0, 0

    def bytes_for(self, num_more_rows: int) -> int:
        """Return the bytes it will take with so many more rows, if any wait."""
        return self._num_bytes + num_more_rows * self._bytes_per_row

    def copy(self) -> "Backlog":
        """Return a backlog of its own with the same rows."""
        own = self._num_own, self._num_bytes, self._bytes_per_row
        return Backlog(list(self.spans), self.num_rows, self.num_foreign, *own)

    def first_rows(self, num_rows: int) -> "Backlog":
        """Return a backlog of its own with the leading ones of the rows."""
        found = Backlog()
        for span in self.spans:
            num_left = num_rows - found.num_rows
            if num_left <= 0:
                break
            found.add(span.first_rows(min(num_left, span.stop - span.first)))
        found.leave_passes()
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
