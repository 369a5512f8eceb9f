"""A request in progress: what it has got so far, and how it ended."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headlong.decode.request import Request
from headlong.decode.sampling import Pick
from headlong.decode.sequence import DecodingSequence
from headlong.decode.stats import DecodeStats, Timings
from headlong.engine.policy import Policy
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
    policy: Policy
    arrival: int = 0
    """Its place among all requests ever submitted."""
    stats: DecodeStats = field(default_factory=DecodeStats)
    timings: Timings = field(default_factory=Timings)
    outbox: deque[Emitted] = field(default_factory=deque)
    num_emitted: int = 0
    finish_reason: FinishReason | None = None
    error: HeadlongError | None = None
    """Why it ended with `FinishReason.ERROR`; other requests go on."""

    def tokens_left(self, context_length: int) -> int:
        """Return how many tokens it may still get, by its own limit and by the context."""
        room = context_length - len(self.request.prompt_ids)
        return min(self.request.stopping.max_tokens, room) - self.num_emitted
