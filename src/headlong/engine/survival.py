"""Acceptance statistics: chances per depth, and the calibration of a drafter's probabilities.

Learned per request, with a prior from all requests of similar temperature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from headlong.ops.calibration import EDGES, Calibration, bin_of

MAX_AUTO_TOKENS = 16
"""The deepest draft that "auto" considers."""

PRIOR_WEIGHT = 5.0
"""For how many observations a prior counts."""

OPTIMISM = 0.7
"""Assumed chance of acceptance before any draft was observed; high, so that drafts are tried."""

SHARED_MEMORY = 0.998
"""Weight of earlier observations after a new one, for all requests of similar temperature."""


class Expected(NamedTuple):
    """Expected rows and accepted tokens of a request at each requested depth."""

    rows: Sequence[float]
    tokens: Sequence[float]


class DepthChances:
    """Per depth: how often it was reached, and how often it was passed."""

    def __init__(self) -> None:
        self._reached = [0.0] * MAX_AUTO_TOKENS
        self._passed = [0.0] * MAX_AUTO_TOKENS

    def observe(self, num_asked: int, num_passed: int, memory: float) -> None:
        """Learn from one draft; `memory` is what it leaves of earlier ones."""
        for depth in range(min(num_asked, num_passed + 1, MAX_AUTO_TOKENS)):
            self._reached[depth] = memory * self._reached[depth] + 1
            self._passed[depth] = memory * self._passed[depth] + (depth < num_passed)

    def read(self, prior: Sequence[float]) -> list[float]:
        """Return the chance to pass each depth, given that all before it were passed."""
        found: list[float] = []
        for depth in range(MAX_AUTO_TOKENS):
            # A request that does well or badly tends to do so one depth further, too.
            mean = (prior[depth] + found[-1]) / 2 if found else prior[0]
            weight = self._reached[depth] + PRIOR_WEIGHT
            found.append((self._passed[depth] + PRIOR_WEIGHT * mean) / weight)
        return found


class Survival:
    """Chances that a token is drafted at each depth, and that it is accepted."""

    def __init__(self) -> None:
        self._drafted, self._accepted = DepthChances(), DepthChances()

    def observe(self, num_asked: int, num_drafted: int, num_accepted: int, memory: float) -> None:
        """Learn from one draft; `memory` is what it leaves of earlier ones."""
        self._drafted.observe(num_asked, num_drafted, memory)
        self._accepted.observe(num_asked, num_accepted, memory)

    def expect(self, shared: "Survival") -> Expected:
        """Return expected amounts; what all requests have shown is the prior."""
        drafted = shared._drafted.read([1.0] * MAX_AUTO_TOKENS)
        accepted = shared._accepted.read([OPTIMISM] * MAX_AUTO_TOKENS)
        rows = accumulate(self._drafted.read(drafted), mul)
        return Expected(list(rows), list(accumulate(self._accepted.read(accepted), mul)))


@dataclass(slots=True)
class CalibrationCounts:
    """How often tokens in each bin of a drafter's probability were accepted.

    At temperatures above 0 a probability is not the chance of acceptance, since drafter and
    backbone share their noise. A head may also be over- or underconfident.
    """

    seen: list[float] = field(default_factory=lambda: [PRIOR_WEIGHT] * (len(EDGES) + 1))
    accepted: list[float] = field(
        default_factory=lambda: [PRIOR_WEIGHT * max(edge, 1 - OPTIMISM) for edge in (*EDGES, 1.0)]
    )
    _calibration: Calibration | None = None

    def observe(self, probs: Sequence[float], num_accepted: int) -> None:
        """Learn from the tokens of one draft, up to the first refused one."""
        self._calibration = None
        for depth, prob in enumerate(probs[: num_accepted + 1]):
            place = bin_of(prob)
            self.seen[place] = SHARED_MEMORY * self.seen[place] + 1
            self.accepted[place] = SHARED_MEMORY * self.accepted[place] + (depth < num_accepted)

    @property
    def mean(self) -> float:
        """The share of accepted tokens, given that those before them were accepted."""
        return sum(self.accepted) / sum(self.seen)

    def read(self) -> Calibration:
        """Return what was learned."""
        if self._calibration is None:
            shares = zip(self.accepted, self.seen, strict=True)
            self._calibration = Calibration(tuple(accepted / seen for accepted, seen in shares))
        return self._calibration
