"""What passes and drafts cost here and now, learned from every round.

Every number of rows has a price of its own, because kernels work in tiles. What slows all passes
alike goes into one factor that follows quickly; prices are relative to it and move slowly. What a
pass reads of caches is known beforehand, so it is no part of a price.
"""

import math
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

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
    _curve: list[float] = field(default_factory=list)

    @property
    def most_rows(self) -> int:
        """Rows of the largest pass that was measured."""
        return max(self._passes)

    def observe_pass(self, num_rows: int, seconds: float, cache_share: float = 0.0) -> None:
        """Learn from one pass; `cache_share` is what it read of caches, relative to the weights."""
        self._num_passes += 1
        if num_rows not in self._passes:
            self._passes[num_rows] = self._first_price(num_rows, seconds, cache_share)
            self._curve = []
            return
        price = self._passes[num_rows]
        cache_s = self.cache_s(cache_share)
        # A price that is hardly known is itself the likelier cause of a surprise.
        trust = 1 - 1 / price.num_seen
        surprise = _surprise(seconds, self.slowdown * price.seconds + cache_s)
        self.slowdown *= math.exp(QUICK * trust * surprise)
        if price.num_seen == 1:  # the first pass of all is cold, which only makes it slower
            price.seconds = min(price.seconds, (seconds - cache_s) / self.slowdown)
        price.num_seen += 1
        aged = 1 - PRICE_MEMORY ** (self._num_passes - price.measured_at)
        price.measured_at = self._num_passes
        surprise = _surprise(seconds, self.slowdown * price.seconds + cache_s)
        price.seconds *= math.exp(max(min(aged, MAX_SURPRISE), 1 / price.num_seen) * surprise)

    def observe_beside(self, num_steps: int, seconds: float) -> None:
        """Learn from what one round did beside its pass."""
        expected = self.beside_s(num_steps)
        most = max(expected, GUESSED_SHARE * self.pass_s(1))  # a stall is not a new price
        error = QUICK * max(-most, min(seconds - expected, most)) / self.slowdown
        share = error / (1 + num_steps * num_steps)
        a_round, a_step = self._beside_prices()
        self._beside = (max(0.0, a_round + share), max(0.0, a_step + share * num_steps))

    def refresh(self) -> None:
        """Read the curve anew; between two calls only the slowdown moves predictions."""
        self._curve = []

    def is_known(self, num_rows: int) -> bool:
        """Tell whether a pass over this many rows was measured, or lies between two that were."""
        return bool(self._passes) and min(self._passes) <= num_rows <= max(self._passes)

    def pass_s(self, num_rows: float) -> float:
        """Predict the seconds of a pass with empty caches; straight between whole numbers."""
        low = math.floor(num_rows)
        seconds = self._price(low)
        if num_rows > low:
            seconds += (num_rows - low) * (self._price(low + 1) - seconds)
        return self.slowdown * seconds

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

    def _first_price(self, num_rows: int, seconds: float, cache_share: float) -> _Price:
        """Return a price measured once; what the curve predicts counts as a measurement, too."""
        if not self._passes:
            return _Price(seconds / (1 + cache_share) / self.slowdown, self._num_passes)
        cost = self.pass_s(1) / self.pass_s(num_rows)
        own_s = seconds / (1 + cost * cache_share) / self.slowdown
        return _Price(math.sqrt(own_s * self._price(num_rows)), self._num_passes, num_seen=2)

    def _beside_prices(self) -> tuple[float, float]:
        return self._beside or (0.0, GUESSED_SHARE * self._price(1))

    def _price(self, num_rows: int) -> float:
        if not self._curve:
            self._curve = self._read_curve()
        num_known = len(self._curve)
        if num_rows <= num_known:
            return self._curve[max(num_rows, 1) - 1]
        return self._curve[-1] + (num_rows - num_known) * self._row_beyond()

    def _read_curve(self) -> list[float]:
        """Return prices from one row on: straight between measured points, and never falling."""
        points = sorted(self._passes.items())
        seconds = list(accumulate((price.seconds for _, price in points), max))
        curve = [seconds[0]] * points[0][0]
        for i, ((low, _), (high, _)) in enumerate(pairwise(points)):
            slope = (seconds[i + 1] - seconds[i]) / (high - low)
            curve += [seconds[i] + slope * (n - low) for n in range(low + 1, high + 1)]
        return curve

    def _row_beyond(self) -> float:
        """Guess what a row costs beyond the largest measured pass: as before, on average."""
        last, first = len(self._curve), min(self._passes)
        if last == first:
            return GUESSED_SHARE * self._curve[-1] / (1 + GUESSED_SHARE * (last - 1))
        return (self._curve[-1] - self._curve[first - 1]) / (last - first)


def _surprise(seconds: float, expected: float) -> float:
    surprise = math.log(seconds / expected) if seconds > 0 < expected else 0.0
    return min(surprise, MAX_SURPRISE)
