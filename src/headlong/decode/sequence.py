"""The state of one stream of tokens while it is being decoded.

The engine makes these; prefill and round move them on. Between rounds one thing always holds: every
token but the newest is in the backbone's cache. A sequence that lost its caches regains them by
prefill over the tokens it has; nothing is picked anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headlong.cache.kv_cache import KVCache
from headlong.decode.sampling import Sampler
from headlong.decode.stats import DecodeStats, Timings
from headlong.drafters.drafter import Bar, DraftState, Settled


@dataclass(slots=True)
class Backlog:
    """Rows that wait, in order, with their number and size kept at hand."""

    parts: list[Settled] = field(default_factory=list)
    num_rows: int = 0
    num_bytes: int = 0

    def add(self, rows: Settled) -> None:
        """Let rows wait; their hidden states are copied out of the pass they belong to."""
        self.parts.append(replace(rows, hidden=rows.hidden.copy()))
        self.num_rows += len(rows.next_ids)
        self.num_bytes += rows.hidden.num_bytes

    def bytes_for(self, num_more_rows: int) -> int:
        """Return the bytes it will take with so many more rows."""
        return self.num_bytes + num_more_rows * self.num_bytes // max(self.num_rows, 1)

    def first(self, num_parts: int) -> "Backlog":
        """Return a backlog of the parts that were added first."""
        parts = self.parts[:num_parts]
        num_rows = sum(len(one.next_ids) for one in parts)
        return Backlog(parts, num_rows, sum(one.hidden.num_bytes for one in parts))


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
    unobserved: Backlog = field(default_factory=Backlog)
    """Settled rows the drafter has not looked at yet."""

    @property
    def num_rows_left(self) -> int:
        """Rows to run before a round can: the prompt, or what a set-back sequence had computed."""
        return len(self.token_ids) - self.has_begun - self.cache.length

    @property
    def num_observed(self) -> int:
        """Rows the drafter's memory holds."""
        return self.cache.length - self.unobserved.num_rows
