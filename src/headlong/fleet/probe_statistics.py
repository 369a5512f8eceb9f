"""Probe statistics: do two engines draw their words from the same distribution?

In:  for each prompt a few sampled answers of either side, every token scored by the plain one.
Out: how far the two sides are apart, how sure that is, and whether more samples are needed.

A mean log-probability says it, but it differs from answer to answer for no fault of the engine:
some texts are surer than others. So it finds great faults only. For small ones, what the scorer
expected at a place is taken off each token's log-probability. What is left, the surprise, is 0 on
average for honest samples and varies a third as much. But it is blind where a text has derailed and
nothing is expected any more. So both are compared. Where the scorer tells only its best
alternatives, the expectation is slightly off, for both sides alike. Numbers behind the bounds:
docs/log/0077-*.md.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from headlong.decode.logprobs import TokenLogprob

LOOKS = (3, 4, 6, 8)
"""After how many answers per prompt and side the question is asked."""

ALARM_ERRORS = 4.5
"""Standard errors from 0 that count as different: 0.03 % of honest engines, over all looks."""

TOLERANCE = 0.25
"""Log-probability per token; once a larger difference is ruled out, no more samples are drawn."""

_SURE_ERRORS = 3.0
_LEAST_ERROR = 1e-3
"""Answers that are all alike have no spread, but rounding."""


def surprise(seen: TokenLogprob, temperature: float) -> float:
    """Return how much likelier a sampled token was than its scorer expected of any.

    All tokens beyond the alternatives count as likely as the last of these.
    """
    if not seen.top:
        return seen.logprob
    least = seen.top[-1].logprob
    logprobs = [one.logprob for one in seen.top]
    tail = max(0.0, 1 - math.fsum(map(math.exp, logprobs)))
    weights = [math.exp(logprob / temperature) for logprob in logprobs]
    weights.append(tail * math.exp(least * (1 / temperature - 1)))
    parts = zip(weights, [*logprobs, least], strict=True)
    expected = math.fsum(weight * logprob for weight, logprob in parts) / math.fsum(weights)
    return max(seen.logprob, least) - expected


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far apart two sides are."""

    difference: float
    """Mean of the one with drafts less that of the plain one, per token."""
    error: float
    """Its standard error."""

    @property
    def is_odd(self) -> bool:
        """Whether they may be different: more samples would tell."""
        return abs(self.difference) > _SURE_ERRORS * self.error

    @property
    def is_different(self) -> bool:
        """Whether they surely are not the same."""
        return abs(self.difference) > ALARM_ERRORS * self.error

    @property
    def is_same(self) -> bool:
        """Whether a difference that matters is ruled out."""
        return abs(self.difference) + _SURE_ERRORS * self.error < TOLERANCE


@dataclass(frozen=True, slots=True)
class Ruling:
    """What both measures say together."""

    surprise: Comparison
    logprob: Comparison

    @property
    def is_different(self) -> bool:
        """Whether the sides surely are not the same."""
        return self.surprise.is_different or self.logprob.is_different

    @property
    def is_same(self) -> bool:
        """Whether a difference that matters is ruled out by one and not hinted at by the other."""
        return self.surprise.is_same and not self.logprob.is_odd


def compare(drafted: Sequence[Sequence[float]], plain: Sequence[Sequence[float]]) -> Comparison:
    """Compare means of answers, listed by prompt; at least two for each.

    Prompts are compared each with itself, since they differ much more than engines do.
    """
    pairs = list(zip(drafted, plain, strict=True))
    differences = [statistics.fmean(one) - statistics.fmean(other) for one, other in pairs]
    variances = [
        statistics.variance(side) / len(side) for one, other in pairs for side in (one, other)
    ]
    error = math.sqrt(math.fsum(variances)) / len(pairs)
    return Comparison(statistics.fmean(differences), max(error, _LEAST_ERROR))
