"""A request in progress: what it has got so far, and how it ended."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headlong.decode.request import Request
from headlong.decode.sampling import Pick
from headlong.decode.sequence import DecodingSequence
from headlong.decode.stats import DecodeStats, Timings
from headlong.engine.request_policy import RequestPolicy
from headlong.errors import HeadlongError

BACKBONE = "backbone"
"""Source of a token that no drafter had proposed."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """The model ended its text, or a stop string was found."""
    LENGTH = "length"
    """max_tokens, the model's context or the bounds of a grammar were reached."""
    CANCELLED = "cancelled"
    """The caller lost interest."""
    ERROR = "error"
    """A pass broke off; `TokenStream.error` says why."""


class Emitted(NamedTuple):
    """One token on its way to the client."""

    pick: Pick
    source: str
    """What proposed it: "backbone", or the drafter whose proposal stood."""
    depth: int
    """Its place in the draft, from 1; 0 for a token no drafter proposed."""


@dataclass(frozen=True, slots=True)
class RequestReport:
    """What one request took, or several together."""

    stats: DecodeStats
    timings: Timings
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that another request had already run."""
    num_completion_tokens: int
    off_reason: str | None
    """Why there were no drafts in the end, if there were none; None when drafting went on."""
    explanation: str
    """What the draft policy decided and why, in plain words."""
    warning: str | None = None
    """Why the answer is cut, where its grammar could not be followed to an end."""

    @property
    def measured_speedup(self) -> float | None:
        """Against plain decoding at the pass costs of the same moments; None when unknown."""
        return self.timings.measured_speedup


@dataclass(slots=True, eq=False)
class Running:
    """A request in progress: the `TokenStream` of the local engine."""

    request: Request
    sequence: DecodingSequence
    policy: RequestPolicy
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

    @property
    def warning(self) -> str | None:
        """Why its grammar could not be followed to an end; None where it was, or may yet be."""
        constraint = self.sequence.sampler.constraint
        lost = None if constraint is None else constraint.lost
        return None if lost is None else f"The answer is cut. {lost}"

    @property
    def num_ready(self) -> int:
        """Tokens that have arrived and were not taken."""
        return len(self.outbox)

    def take(self, most: int | None = None) -> list[Emitted]:
        """Return tokens that were not taken before, oldest first: all, or at most so many."""
        num = len(self.outbox) if most is None else min(most, len(self.outbox))
        return [self.outbox.popleft() for _ in range(num)]

    def report(self) -> RequestReport:
        """Return what the request took: at its end, or so far."""
        return RequestReport(
            stats=self.stats,
            timings=self.timings,
            num_prompt_tokens=len(self.request.prompt_ids),
            num_cached_tokens=self.sequence.num_cached_tokens,
            num_completion_tokens=self.num_emitted,
            off_reason=self.sequence.off_reason or self.policy.off_reason,
            explanation=self.policy.explain(),
            warning=self.warning,
        )
