"""The verdict: what the probe found about a replica that drafts, and what follows for requests.

In:  one judgement per aspect of an engine's answers. Out: which requests must not go there, and why
in words that people read in logs, on the page and in `mtp.off_reason`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headlong.decode.request import Request
from headlong.fleet.needs import is_greedy, is_json_schema


class Aspect(StrEnum):
    """What of an engine's answers is judged."""

    DRAFTS = "drafts"
    """That it drafts at all: without drafts, nothing was seen under speculation."""
    GREEDY = "greedy text"
    LENGTH = "max_tokens"
    STOP = "stop tokens"
    SAMPLED = "sampled text"
    MIXED = "mixed batches"
    """That greedy answers stay what they are while others in the same passes are sampled."""
    JSON = "JSON"
    GRAMMAR = "grammars"
    LOGPROBS = "logprobs"
    SEED = "seeds"


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    NOT_EXACT = "not exact"
    """Other tokens or numbers than without drafts, as rounding alone can make them."""
    FAILED = "failed"
    NOT_CHECKED = "not checked"
    """It cannot be: an engine lacks what that takes."""
    NOT_SETTLED = "not settled"
    """It can be, but time, load or the plain engine stopped it; nobody relies on it until it is."""


_OF_ALL_REQUESTS = (Aspect.GREEDY, Aspect.LENGTH, Aspect.STOP)
_OF_SAMPLED_REQUESTS = (Aspect.SAMPLED, Aspect.MIXED)
_OF_SOME_REQUESTS = (*_OF_SAMPLED_REQUESTS, Aspect.JSON, Aspect.GRAMMAR, Aspect.LOGPROBS)
_NOTHING_FOUND = (Outcome.NOT_CHECKED, Outcome.NOT_SETTLED)
_REFUSING = {
    Outcome.FAILED: "failed the probe",
    Outcome.NOT_SETTLED: "could not be probed to the end",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found about one aspect."""

    aspect: Aspect
    outcome: Outcome
    seen: str
    """What was seen, with numbers, in whole sentences."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The same for scripts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All judgements of one probe."""

    checked_s: float
    """When, in seconds since 1970."""
    judgements: tuple[Judgement, ...] = ()
    seconds: float = 0.0
    num_tokens: int = 0
    """What the probe took: its time, and tokens written by both sides."""

    @property
    def failed(self) -> tuple[Judgement, ...]:
        """What does not hold."""
        return tuple(one for one in self.judgements if one.outcome is Outcome.FAILED)

    @property
    def refused(self) -> tuple[Judgement, ...]:
        """What requests that need it are kept from."""
        needed = (*_OF_ALL_REQUESTS, *_OF_SOME_REQUESTS)
        return tuple(
            one for one in self.judgements if one.outcome in _REFUSING and one.aspect in needed
        )

    @property
    def problem(self) -> str | None:
        """Why no request may be answered with its drafts, in a whole sentence; None if some may."""
        return self._refusal(_OF_ALL_REQUESTS)

    def blocks(self, request: Request) -> str | None:
        """Return why a request must not be answered with its drafts; None when it may."""
        return self._refusal((*_OF_ALL_REQUESTS, *_needed(request)))

    def completed_by(self, before: "Verdict | None") -> "Verdict":
        """Return this verdict, with what an earlier one had found where this one found nothing.

        A plain engine that is down would else make a known fault forgotten.
        """
        earlier = () if before is None else before.judgements
        known = {one.aspect: one for one in earlier if one.outcome not in _NOTHING_FOUND}
        judgements = tuple(
            known.get(one.aspect, one) if one.outcome in _NOTHING_FOUND else one
            for one in self.judgements
        )
        return replace(self, judgements=judgements)

    def _refusal(self, needed: tuple[Aspect, ...]) -> str | None:
        refused = {one.aspect: one for one in self.refused}
        one = next((refused[aspect] for aspect in needed if aspect in refused), None)
        if one is None:
            return None
        return f"Its {one.aspect} with drafts {_REFUSING[one.outcome]}: {one.seen}"


def _needed(request: Request) -> tuple[Aspect, ...]:
    """Return what must hold for this request besides what must hold for all."""
    needed = [] if is_greedy(request) else [*_OF_SAMPLED_REQUESTS]
    if request.sampling.logprobs is not None:
        needed.append(Aspect.LOGPROBS)
    if request.grammar is not None:
        needed.append(Aspect.JSON if is_json_schema(request) else Aspect.GRAMMAR)
    return tuple(needed)
