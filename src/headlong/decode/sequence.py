"""The state of one sequence while it is being decoded.

The runner makes sequences; prefill and rounds advance them. Between rounds, every token but the
newest is in the backbone's cache. A preempted sequence regains its caches by prefill over its
tokens; no token is picked again.
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
        """Number of rows."""
        return len(self.rows)

    def clear(self) -> None:
        """Drop all rows; copies of them are not affected."""
        self.rows = self.host.make_rows()

    def bytes_for(self, num_more_rows: int) -> int:
        """Return the bytes it will take with `num_more_rows` more rows."""
        return self.rows.bytes_for(len(self.rows) + num_more_rows)

    def first_rows(self, num_rows: int) -> "Backlog":
        """Return a separate backlog with the first rows."""
        return Backlog(self.host, self.rows.first_rows(num_rows))


@dataclass(slots=True, eq=False)
class DecodingSequence:
    """Tokens, cache, sampler and draft state of one sequence."""

    request: Request
    token_ids: list[int]
    """Prompt and answer so far."""
    cache: SequenceState
    sampler: Sampler
    backlog: Backlog
    """Rows of the cache that the drafter has not observed yet."""
    draft_state: DraftState | None = None
    """None while the sequence has no caches, or if it never drafts."""
    wants_drafts: bool = False
    """Whether the request asked for drafts and there is a drafter."""
    off_reason: str | None = None
    """Why it does not draft although the request asked for it: no drafter, or a failed one."""
    has_begun: bool = False
    """Whether the answer has a first token."""
    num_cached_tokens: int = 0
    """Prompt tokens whose rows came from another request."""
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    """Log-probabilities of the prompt's tokens after the first, by position, if requested."""
    pooled: PooledRows | None = None
    """The pooled hidden states of the prompt, if requested."""
    plan: DraftPlan = NO_PLAN
    """The plan of its newest round; before the first one, whether it begins idle."""

    @property
    def drafts(self) -> bool:
        """Whether it has, or will get, a draft state."""
        return self.wants_drafts and self.off_reason is None

    @property
    def num_rows_left(self) -> int:
        """Rows of prefill left: of the prompt, or of all tokens of a preempted sequence."""
        return len(self.token_ids) - self.has_begun - self.cache.length

    @property
    def num_observed(self) -> int:
        """Rows that the drafter has observed."""
        return self.cache.length - self.backlog.num_rows

    def max_tokens_left(self, context_length: int) -> int:
        """Return how many more tokens its own limit and the context allow."""
        num_prompt = len(self.request.prompt_ids)
        most = min(self.request.stopping.max_tokens, context_length - num_prompt)
        return most - (len(self.token_ids) - num_prompt)
