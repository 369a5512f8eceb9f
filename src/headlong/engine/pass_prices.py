"""What passes and drafts cost here and now, learned from every round.

Every number of rows has a price of its own, because kernels work in tiles. What slows all passes
alike goes into one factor that follows quickly; prices are relative to it and move slowly. What a
pass reads of caches is known beforehand, so it is no part of a price.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

PRICE_MEMORY = 0.96
"""What a pass keeps of a price that was just measured; one not measured for long keeps less."""

QUICK = 0.2
"""How much of a surprise the slowdown and the prices of drafting take over."""

MAX_SURPRISE = 0.25
"""Logarithm of the largest delay that is learned from, since a stalled pass is not a new price; and
how much of a surprise a price takes over at most, however long ago it was measured."""

GUESSED_SHARE = 0.08
"""What one more row or draft step costs before any was measured, relative to a plain pass; also
what a row costs relative to a draft step where many run together. Low, so that it is tried."""


@dataclass(slots=True)
class _Price:
    seconds: float
    measured_at: int
    """Number of the pass that measured it last."""
    num_seen: int = 1


@dataclass(slots=True)
class PassPrices:
    """Seconds of a backbone pass by number of rows, and of what a round does beside it."""

    slowdown: float = 1.0
    """What passes take now, against their prices."""
    _passes: dict[int, _Price] = field(default_factory=dict)
    _num_passes: int = 0
    _beside: tuple[float, float] | None = None
    """Prices beside the pass: of a round and of a draft step."""
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
            guess = seconds / (1 + cache_share) if is_first else self._price(num_rows)
            self._passes[num_rows] = _Price(guess, self._num_passes)
        price = self._passes[num_rows]
        cache_s = self.cache_s(cache_share)
        # A price that is hardly known is itself the likelier cause of a surprise.
        trust = 1 - 1 / price.num_seen
        most = MAX_SURPRISE if price.num_seen > 3 else math.inf
        surprise = _surprise(seconds, self.slowdown * price.seconds + cache_s)
        self.slowdown *= math.exp(QUICK * trust * min(surprise, MAX_SURPRISE))
        if len(self._passes) == price.num_seen == 1:  # the first of all is cold, so it was slower
            price.seconds = min(price.seconds, (seconds - cache_s) / self.slowdown)
        price.num_seen += not is_first
        aged = 1 - PRICE_MEMORY ** (self._num_passes - price.measured_at)
        price.measured_at = self._num_passes
        surprise = min(_surprise(seconds, self.slowdown * price.seconds + cache_s), most)
        price.seconds *= math.exp(max(min(aged, MAX_SURPRISE), 1 / price.num_seen) * surprise)
        self._curve.clear()

    def observe_beside(self, num_steps: int, seconds: float) -> None:
        """Learn from what one round did beside its pass."""
        expected = self.beside_s(num_steps)
        most = max(expected, GUESSED_SHARE * self.pass_s(1))  # a stall is not a new price
        error = QUICK * max(-most, min(seconds - expected, most)) / self.slowdown
        share = error / (1 + num_steps * num_steps)
        a_round, a_step = self._beside_prices()
        self._beside = (max(0.0, a_round + share), max(0.0, a_step + share * num_steps))

    def is_known(self, num_rows: int) -> bool:
        """Tell whether a pass over this many rows was measured, or lies between two that were."""
        return bool(self._passes) and min(self._passes) <= num_rows <= max(self._passes)

    def pass_s(self, num_rows: float) -> float:
        """Predict the seconds of a pass with empty caches."""
        return self.slowdown * self._price(num_rows)

    def cache_s(self, cache_share: float) -> float:
        """Predict how long reading caches takes: as long as reading as much of the weights."""
        return cache_share * self.pass_s(1)

    def beside_s(self, num_steps: float) -> float:
        """Predict the seconds beside the pass of a round of so many draft steps."""
        a_round, a_step = self._beside_prices()
        return self.slowdown * (a_round + a_step * num_steps)

    def step_s(self) -> float:
        """Predict how long one draft step takes."""
        return self.slowdown * self._beside_prices()[1]

    def backlog_s(self, num_rows: int) -> float:
        """Predict how long the drafter takes to catch up on so many rows, which run together."""
        return GUESSED_SHARE * self.step_s() * num_rows

    def _beside_prices(self) -> tuple[float, float]:
        return self._beside or (0.0, GUESSED_SHARE * self._price(1))

    def _price(self, num_rows: float) -> float:
        """Read prices: straight between measured points, level before them, and never falling.

        Where more rows cost less, the fewer ones were measured at a bad moment: stalls only ever
        make a pass longer. Otherwise one stalled plain pass would make all drafts look free.
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
        if low > first:  # rows beyond cost what they cost so far, on average
            return seconds + (num_rows - low) * (seconds - first_s) / (low - first)
        return seconds * (1 + GUESSED_SHARE * (num_rows - 1)) / (1 + GUESSED_SHARE * (low - 1))


def _surprise(seconds: float, expected: float) -> float:
    return math.log(seconds / expected) if seconds > 0 < expected else 0.0
