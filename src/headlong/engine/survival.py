"""How far drafts carry: chances per depth, and the chance behind a drafter's probability.

Learned per request, with a prior from all requests of like temperature, so that a new request does
not begin from nothing.
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
"""Chance to stand before any draft was observed: what is never drafted shows nothing."""

SHARED_MEMORY = 0.998
"""What an observation leaves of earlier ones, of all requests of like temperature."""


class Expected(NamedTuple):
    """Rows and tokens that a request is expected to add at each depth it is asked for."""

    rows: Sequence[float]
    tokens: Sequence[float]


class DepthChances:
    """Per depth: how often it was reached, with all before it, and how often it was passed."""

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
    """Chances that a token is drafted at each depth, and that it stands."""

    def __init__(self) -> None:
        self._drafted, self._stood = DepthChances(), DepthChances()

    def observe(self, num_asked: int, num_drafted: int, num_stood: int, memory: float) -> None:
        """Learn from one draft; `memory` is what it leaves of earlier ones."""
        self._drafted.observe(num_asked, num_drafted, memory)
        self._stood.observe(num_asked, num_stood, memory)

    def expect(self, shared: "Survival") -> Expected:
        """Return expected amounts; what all requests have shown is the prior."""
        drafted = shared._drafted.read([1.0] * MAX_AUTO_TOKENS)
        stood = shared._stood.read([OPTIMISM] * MAX_AUTO_TOKENS)
        rows = accumulate(self._drafted.read(drafted), mul)
        return Expected(list(rows), list(accumulate(self._stood.read(stood), mul)))


@dataclass(slots=True)
class CalibrationCounts:
    """How often tokens of each range of a drafter's probability stood.

    At temperatures above 0 a probability is not the chance to stand, since drafter and backbone
    share their noise; and any head may be too sure or too modest.
    """

    seen: list[float] = field(default_factory=lambda: [PRIOR_WEIGHT] * (len(EDGES) + 1))
    stood: list[float] = field(
        default_factory=lambda: [PRIOR_WEIGHT * max(edge, 1 - OPTIMISM) for edge in (*EDGES, 1.0)]
    )
    _calibration: Calibration | None = None

    def observe(self, probs: Sequence[float], num_accepted: int) -> None:
        """Learn from the tokens of one draft, up to the first that did not stand."""
        self._calibration = None
        for depth, prob in enumerate(probs[: num_accepted + 1]):
            place = bin_of(prob)
            self.seen[place] = SHARED_MEMORY * self.seen[place] + 1
            self.stood[place] = SHARED_MEMORY * self.stood[place] + (depth < num_accepted)

    @property
    def mean(self) -> float:
        """The share of all tokens that stood once those before them did."""
        return sum(self.stood) / sum(self.seen)

    def read(self) -> Calibration:
        """Return what was learned."""
        if self._calibration is None:
            shares = zip(self.stood, self.seen, strict=True)
            self._calibration = Calibration(tuple(stood / seen for stood, seen in shares))
        return self._calibration
