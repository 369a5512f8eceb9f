"""A request in progress: what it has got so far, and how it ended."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headlong.decode.logprobs import TokenLogprob
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
    """The caller ended it."""
    ERROR = "error"
    """A pass failed; `TokenStream.error` says why."""


class Emitted(NamedTuple):
    """One token on its way to the client."""

    pick: Pick
    source: str
    """What proposed it: "backbone", or the drafter whose token was accepted."""
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
    prompt_logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)
    """How likely each prompt token behind the first was, by its place, where that was asked."""
    embedding: Sequence[float] = ()
    """The embedding of the prompt, if requested."""
    warning: str | None = None
    """Why the answer was cut, if its grammar exceeded its limits."""
    bound_reason: str | None = None
    """Why a fixed K was not always drafted, if it was not."""

    @property
    def measured_speedup(self) -> float | None:
        """Relative to plain decoding at the pass costs of that time; None if unknown."""
        return self.timings.measured_speedup


@dataclass(slots=True, eq=False)
class Running:
    """A request in progress: the `TokenStream` of the local engine."""

    request: Request
    sequence: DecodingSequence
    policy: RequestPolicy
    arrival: int = 0
    """Its number among all submitted requests."""
    stats: DecodeStats = field(default_factory=DecodeStats)
    timings: Timings = field(default_factory=Timings)
    outbox: deque[Emitted] = field(default_factory=deque)
    num_emitted: int = 0
    finish_reason: FinishReason | None = None
    error: HeadlongError | None = None
    """Why it ended with `FinishReason.ERROR`."""

    def tokens_left(self, context_length: int) -> int:
        """Return how many more tokens its own limit and the context allow."""
        room = context_length - len(self.request.prompt_ids)
        return min(self.request.stopping.max_tokens, room) - self.num_emitted

    @property
    def warning(self) -> str | None:
        """Why its grammar cut the answer; None if it did not."""
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
        """Return statistics and timings of the request, final or so far."""
        return RequestReport(
            stats=self.stats,
            timings=self.timings.at_most(self.stats.acceptance_length),
            num_prompt_tokens=len(self.request.prompt_ids),
            num_cached_tokens=self.sequence.num_cached_tokens,
            num_completion_tokens=self.num_emitted,
            off_reason=self.sequence.off_reason or off_reason(self.policy),
            explanation=explain(self.policy),
            prompt_logprobs=self.sequence.prompt_logprobs,
            embedding=() if self.sequence.pooled is None else self.sequence.pooled.vector(),
            warning=self.warning,
            bound_reason=bound_reason(self.policy),
        )


def off_reason(policy: RequestPolicy) -> str | None:
    """Say why drafts do not pay now; None if they do, or if nothing was decided."""
    if not policy.is_auto or policy.num_tokens or policy.forecast is None:
        return None
    return (
        f"Drafting does not pay here: the best draft, K={policy.forecast.num_tokens}, would run "
        f"at {policy.forecast.gain:.2f} ×."
    )


def bound_reason(policy: RequestPolicy) -> str | None:
    """Say why a fixed K was an upper bound; None if it was always used."""
    if not policy.num_bound_rounds:
        return None
    return (
        f"K={policy.mtp} was an upper bound in the {policy.num_bound_rounds} rounds shared with "
        "other requests, since drafts that do not pay slow all of them down."
    )


def explain(policy: RequestPolicy) -> str:
    """Explain the policy's decision in words."""
    if policy.mtp == "off":
        return "No drafts: the request asked for none."
    if not policy.is_auto:
        return f"Always drafts K={policy.mtp}: the request asked for that."
    seen = policy.forecast
    if seen is None:
        return "Not decided yet: a plain pass is measured first."
    numbers = (
        f"with K={seen.num_tokens} a round is expected to give {seen.expected_tokens:.2f} "
        f"tokens in {1000 * seen.round_s:.1f} ms, without drafts one in "
        f"{1000 * seen.plain_s:.1f} ms; all streams together run at {seen.gain:.2f} ×"
    )
    return f"{'Drafts' if policy.num_tokens else 'Only looks up n-grams'}: {numbers}."
