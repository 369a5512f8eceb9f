"""What a client asked, what it has got so far, and how it ended."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.constraint import Grammar
from headlong.decode.sampling import Pick
from headlong.decode.sequence import DecodingSequence
from headlong.engine.request_policy import RequestPolicy
from headlong.errors import HeadlongError

BACKBONE = "backbone"
"""Source of a token that no drafter had proposed."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The model ended its text, or a stop string was found."""
    LENGTH = "length"
    """max_tokens or the model's context was reached."""
    CANCELLED = "cancelled"
    """The caller lost interest."""
    ERROR = "error"
    """A pass broke off; `Running.error` says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, as asked for; token ids only, text stays above."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stopping: StopParams = field(default_factory=StopParams)
    mtp: MtpMode = "auto"
    eos_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    """What the answer must look like; None leaves it free."""
    cache_salt: str = ""
    """Only requests with the same salt share what they have run."""


class Emitted(NamedTuple):
    """One token on its way to the client."""

    pick: Pick
    source: str
    """Who proposed it: "backbone", or the drafter whose proposal stood."""
    depth: int
    """Its place in the draft, from 1; 0 for a token no drafter proposed."""


@dataclass(slots=True, eq=False)
class Running:
    """A request in progress."""

    request: Request
    sequence: DecodingSequence
    policy: RequestPolicy
    arrival: int = 0
    """Its place among all requests ever submitted."""
    has_drafter: bool = False
    """Whether it asked for drafts and there is somebody to make them."""
    outbox: deque[Emitted] = field(default_factory=deque)
    num_emitted: int = 0
    finish_reason: FinishReason | None = None
    error: HeadlongError | None = None
    """Why it ended with `FinishReason.ERROR`; other requests go on."""
    num_cached_tokens: int = 0
    """Prompt tokens that another request had already run, so that this one need not."""

    def tokens_left(self, context_length: int) -> int:
        """Return how many tokens it may still get, by its own limit and by the context."""
        room = context_length - len(self.request.prompt_ids)
        return min(self.request.stopping.max_tokens, room) - self.num_emitted

    @property
    def drafts(self) -> bool:
        """Whether it has, or gets, a drafter's memory."""
        return self.has_drafter and self.sequence.off_reason is None
