"""The state of one stream of tokens while it is being decoded.

The engine makes these; prefill and round move them on. Between rounds one thing always holds: every
token but the newest is in the backbone's cache. A sequence that lost its caches regains them by
prefill over the tokens it has; nothing is picked anew.
"""

from dataclasses import dataclass, field

from headlong.cache.kv_cache import KVCache
from headlong.decode.sampling import Sampler
from headlong.decode.stats import DecodeStats, Timings
from headlong.drafters.draft_plan import NO_PLAN, DraftPlan
from headlong.drafters.drafter import DraftState
from headlong.ops.packed_rows import PackedRows, make_rows


@dataclass(slots=True)
class Backlog:
    """The newest rows of a sequence's cache, which wait for its drafter, in order."""

    rows: PackedRows = field(default_factory=make_rows)

    @property
    def num_rows(self) -> int:
        """How many rows wait."""
        return len(self.rows)

    def clear(self) -> None:
        """Let no row wait any more, for whoever holds this backlog."""
        self.rows = make_rows()

    def bytes_for(self, num_more_rows: int) -> int:
        """Return the bytes it will take with so many more rows, if any wait."""
        return self.rows.bytes_for(len(self.rows) + num_more_rows)

    def first_rows(self, num_rows: int) -> "Backlog":
        """Return a backlog of its own with the leading ones of the rows."""
        return Backlog(self.rows.first_rows(num_rows))


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
    plan: DraftPlan = NO_PLAN
    """What was planned for its newest round; before the first one, whether it begins idle."""
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
