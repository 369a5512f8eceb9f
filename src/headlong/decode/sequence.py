"""The state of one stream of tokens while it is being decoded.

The runner makes these; prefill and round move them on. Between rounds one thing always holds: every
token but the newest is in the backbone's cache. A sequence that lost its caches regains them by
prefill over the tokens it has; nothing is picked anew.
"""

from dataclasses import dataclass, field

from headlong.cache.sequence_state import SequenceState
from headlong.decode.logprobs import TokenLogprob
from headlong.decode.pooling import PooledRows
from headlong.decode.request import Request
from headlong.decode.sampling import Sampler
from headlong.drafters.draft_plan import NO_PLAN, DraftPlan
from headlong.drafters.drafter import DraftState
from headlong.ops.host_ops import HostOps, PackedRows


class Backlog:
    """The newest committed rows of a sequence, which its drafter has not observed yet, in order."""

    __slots__ = ("host", "rows")

    def __init__(self, host: HostOps, rows: PackedRows | None = None) -> None:
        self.host = host
        self.rows = host.make_rows() if rows is None else rows

    @property
    def num_rows(self) -> int:
        """How many rows wait."""
        return len(self.rows)

    def clear(self) -> None:
        """Drop all rows; what was handed out of them stays."""
        self.rows = self.host.make_rows()

    def bytes_for(self, num_more_rows: int) -> int:
        """Return the bytes it will take with so many more rows, if any wait."""
        return self.rows.bytes_for(len(self.rows) + num_more_rows)

    def first_rows(self, num_rows: int) -> "Backlog":
        """Return a backlog of its own with the leading ones of the rows."""
        return Backlog(self.host, self.rows.first_rows(num_rows))


@dataclass(slots=True, eq=False)
class DecodingSequence:
    """Tokens, cache, sampler and drafter's memory of one sequence."""

    request: Request
    token_ids: list[int]
    """Prompt and answer so far."""
    cache: SequenceState
    sampler: Sampler
    backlog: Backlog
    """Rows of the cache that the drafter has not observed yet."""
    draft_state: DraftState | None = None
    """The drafter's memory; None while the sequence has no caches, or never drafts."""
    wants_drafts: bool = False
    """Whether the request asked for drafts and there is a drafter."""
    off_reason: str | None = None
    """Why this sequence does not draft though it was asked to: no drafter, or one that failed."""
    has_begun: bool = False
    """Whether the answer has a first token."""
    num_cached_tokens: int = 0
    """Prompt tokens that another request had already run, so that this one need not."""
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    """How likely each prompt token behind the first was, by its place, where the request asked."""
    pooled: PooledRows | None = None
    """The prompt's rows as one vector, where the request asked."""
    plan: DraftPlan = NO_PLAN
    """What was planned for its newest round; before the first one, whether it begins idle."""

    @property
    def drafts(self) -> bool:
        """Whether it has, or gets, a drafter's memory."""
        return self.wants_drafts and self.off_reason is None

    @property
    def num_rows_left(self) -> int:
        """Rows to run before a round can: the prompt, or what a preempted sequence had computed."""
        return len(self.token_ids) - self.has_begun - self.cache.length

    @property
    def num_observed(self) -> int:
        """Rows the drafter's memory holds."""
        return self.cache.length - self.backlog.num_rows

    def max_tokens_left(self, context_length: int) -> int:
        """Return how many tokens it may still get, by its own limit and by the context."""
        num_prompt = len(self.request.prompt_ids)
        most = min(self.request.stopping.max_tokens, context_length - num_prompt)
        return most - (len(self.token_ids) - num_prompt)
