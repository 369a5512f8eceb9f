"""The cost model: seconds of passes and drafts on this machine, learned from every round.

Every number of rows has its own cost, because kernels work in tiles. One factor, the slowdown,
quickly follows what slows all passes alike; costs are relative to it and change slowly. The time
for reading caches is computed from their bytes, so it is not part of a cost.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

COST_MEMORY = 0.96
"""Weight of the old cost at the next measurement; it falls with the time between the two."""

QUICK = 0.2
"""Share of a deviation by which the slowdown and the costs of drafting are corrected."""

MAX_DEVIATION = 0.25
"""Limit of the logarithm of a deviation that is learned from, since a stalled pass is not a new
cost; also the largest share by which a cost is corrected, however long ago it was measured."""

GUESSED_SHARE = 0.08
"""Assumed cost of one more row or draft step before any was measured, relative to a plain pass;
also of a backlog row relative to a draft step. Low, so that drafts are tried."""


@dataclass(slots=True)
class _Cost:
    seconds: float
    measured_at: int
    """Number of the pass that measured it last."""
    num_seen: int = 1


@dataclass(slots=True)
class CostModel:
    """Seconds of a backbone pass by number of rows, and of what a round does beside it."""

    slowdown: float = 1.0
    """Present duration of passes relative to their costs."""
    _passes: dict[int, _Cost] = field(default_factory=dict)
    _num_passes: int = 0
    _beside: tuple[float, float] | None = None
    """Costs beside the pass: of a round and of a draft step."""
    _curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def most_rows(self) -> int:
        """Rows of the largest pass that was measured."""
        return max(self._passes)

    def observe_pass(self, num_rows: int, seconds: float, cache_share: float = 0.0) -> None:
        """Learn from one pass; `cache_share` is what it read of caches, relative to the weights."""
        self._num_passes += 1
        is_first = not self._passes
        if num_rows not in self._passes:  # what the curve predicts counts as a measurement
            guess = seconds / (1 + cache_share) if is_first else self._cost(num_rows)
            self._passes[num_rows] = _Cost(guess, self._num_passes)
        cost = self._passes[num_rows]
        cache_s = self.cache_s(cache_share)
        # If a cost was measured seldom, a deviation is more likely an error of the cost.
        trust = 1 - 1 / cost.num_seen
        most = MAX_DEVIATION if cost.num_seen > 3 else math.inf
        deviation = _deviation(seconds, self.slowdown * cost.seconds + cache_s)
        self.slowdown *= math.exp(QUICK * trust * min(deviation, MAX_DEVIATION))
        if len(self._passes) == cost.num_seen == 1:  # the very first pass ran with cold caches
            cost.seconds = min(cost.seconds, (seconds - cache_s) / self.slowdown)
        cost.num_seen += not is_first
        aged = 1 - COST_MEMORY ** (self._num_passes - cost.measured_at)
        cost.measured_at = self._num_passes
        deviation = min(_deviation(seconds, self.slowdown * cost.seconds + cache_s), most)
        cost.seconds *= math.exp(max(min(aged, MAX_DEVIATION), 1 / cost.num_seen) * deviation)
        self._curve.clear()

    def observe_beside(self, num_steps: int, seconds: float) -> None:
        """Learn from what one round did beside its pass."""
        expected = self.beside_s(num_steps)
        most = max(expected, GUESSED_SHARE * self.pass_s(1))  # a stall is not a new cost
        error = QUICK * max(-most, min(seconds - expected, most)) / self.slowdown
        share = error / (1 + num_steps * num_steps)
        a_round, a_step = self._beside_costs()
        self._beside = (max(0.0, a_round + share), max(0.0, a_step + share * num_steps))

    def is_known(self, num_rows: int) -> bool:
        """Tell whether this number of rows is within the range of measured passes."""
        return bool(self._passes) and min(self._passes) <= num_rows <= max(self._passes)

    def pass_s(self, num_rows: float) -> float:
        """Predict the seconds of a pass with empty caches."""
        return self.slowdown * self._cost(num_rows)

    def cache_s(self, cache_share: float) -> float:
        """Predict how long reading caches takes: as long as reading as many bytes of weights."""
        return cache_share * self.pass_s(1)

    def beside_s(self, num_steps: float) -> float:
        """Predict the seconds beside the pass of a round of so many draft steps."""
        a_round, a_step = self._beside_costs()
        return self.slowdown * (a_round + a_step * num_steps)

    def step_s(self) -> float:
        """Predict how long one draft step takes."""
        return self.slowdown * self._beside_costs()[1]

    def backlog_s(self, num_rows: int) -> float:
        """Predict how long the drafter takes to catch up on so many rows, which run together."""
        return GUESSED_SHARE * self.step_s() * num_rows

    def _beside_costs(self) -> tuple[float, float]:
        return self._beside or (0.0, GUESSED_SHARE * self._cost(1))

    def _cost(self, num_rows: float) -> float:
        """Return the cost by linear interpolation, constant below the first measured point.

        Costs never fall with rows: a smaller pass gets the cost of a cheaper larger one, since
        stalls only make passes longer. Else one stalled plain pass would make drafts look free.
        """
        if not self._curve:
            rows = sorted(self._passes, reverse=True)
            lowest = accumulate((self._passes[n].seconds for n in rows), min)
            self._curve = sorted(zip(rows, lowest, strict=True))
        place = bisect_right(self._curve, num_rows, key=itemgetter(0))
        low, seconds = self._curve[max(0, place - 1)]
        if not place:
            return seconds
        if place < len(self._curve):
            high, high_s = self._curve[place]
            return seconds + (num_rows - low) * (high_s - seconds) / (high - low)
        first, first_s = self._curve[0]
        if low > first:  # further rows cost as much as the measured ones, on average
            return seconds + (num_rows - low) * (seconds - first_s) / (low - first)
        return seconds * (1 + GUESSED_SHARE * (num_rows - 1)) / (1 + GUESSED_SHARE * (low - 1))


def _deviation(seconds: float, expected: float) -> float:
    return math.log(seconds / expected) if seconds > 0 < expected else 0.0
