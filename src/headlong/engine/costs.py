"""What passes and drafts cost here and now, learned from every round.

In:  seconds of measured rounds. Out: predicted seconds for any number of rows and draft steps.
A machine's speed wanders: clock, neighbours, growing contexts. What all measurements share goes
into one factor, the *weather*, that follows quickly; what makes one pass dearer than another goes
into prices relative to it, which move slowly. Choices depend on the prices alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low

FIRST_SAMPLES = 3
"""So many first measurements of a price are kept; their lower median is believed."""

FULL_WEIGHT = 20
"""Measurements after which a price is believed as firmly as any."""

NEIGHBOUR_WEIGHT = 3.0
"""For how many measurements the line between the neighbours of a price counts."""

PRICE_SPEED = 0.04
"""How much of a surprise a well-known price takes over."""

WEATHER_SPEED = 0.2
"""How much of a surprise the weather takes over."""

MAX_SURPRISE = 0.25
"""Logarithm of the largest surprise that is learned from: a stalled pass is not a new price."""

GUESSED_ROW = 0.08
"""Price of one more row, relative to a plain pass, before any is known; hopeful, so it is tried."""

DRAFT_SPEED = 0.2
"""How much of a surprise the prices of drafting take over."""


@dataclass(slots=True)
class Price:
    """What something costs in fair weather."""

    seconds: float
    num_seen: int = 1
    _first: list[float] = field(default_factory=list)

    def observe(self, seconds: float) -> None:
        """Learn from one more measurement."""
        self.num_seen += 1
        if self.num_seen > FIRST_SAMPLES:
            speed = max(PRICE_SPEED, 1 / self.num_seen)
            self.seconds *= math.exp(speed * _surprise(seconds, self.seconds))
            return
        # Cold caches only ever make it dearer, hence the lower one of two.
        self._first = [*(self._first or [self.seconds]), seconds]
        self.seconds = median_low(self._first)

    @property
    def weight(self) -> float:
        """How firmly it is believed."""
        return float(min(self.num_seen, FULL_WEIGHT))


@dataclass(frozen=True, slots=True)
class DraftWork:
    """How much drafting a round does; expected amounts may be fractions."""

    num_asks: float = 0.0
    """Sequences that draft."""
    num_depths: float = 0.0
    """Depths at which the drafter's model runs for at least one of them."""
    num_steps: float = 0.0
    """Depths summed over the sequences for which it runs there."""

    @property
    def amounts(self) -> tuple[float, float, float, float]:
        """What is paid for: being asked at all, every ask, every depth, every step."""
        return (min(1.0, self.num_asks), self.num_asks, self.num_depths, self.num_steps)


@dataclass(slots=True)
class CostModel:
    """Seconds of a backbone pass by number of rows, and of drafting."""

    passes: dict[int, Price] = field(default_factory=dict)
    weather: float = 1.0
    _draft_prices: list[float] = field(default_factory=list)
    _curve: list[float] = field(default_factory=list)

    def observe_pass(self, num_rows: int, seconds: float) -> None:
        """Learn from one measured pass of a round."""
        price = self.passes.get(num_rows)
        if price is None:
            self.passes[num_rows] = Price(seconds / self.weather)
            self._curve = []
            return
        # A price that is hardly known is itself the likelier cause of a surprise.
        speed = WEATHER_SPEED * price.weight / FULL_WEIGHT
        self.weather *= math.exp(speed * _surprise(seconds, self.weather * price.seconds))
        price.observe(seconds / self.weather)

    def refresh(self) -> None:
        """Read the curve anew; between two calls only the weather moves predictions."""
        self._curve = []

    def observe_draft(self, work: DraftWork, seconds: float) -> None:
        """Learn from the drafting of one round that was asked for drafts."""
        amounts = work.amounts
        if not self.passes or not work.num_asks:
            return
        expected = self.draft_s(work)
        fair = (seconds - expected) / self.weather
        most = max(expected / self.weather, 0.02 * self._fair_pass(1))
        error = max(-most, min(fair, most))
        size = sum(amount * amount for amount in amounts)
        self._draft_prices = [
            max(0.0, price + DRAFT_SPEED * error * amount / size)
            for price, amount in zip(self._prices_of_drafting(), amounts, strict=True)
        ]

    def is_known(self, num_rows: int) -> bool:
        """Tell whether a pass over this many rows was measured, or lies between two that were."""
        measured = self.passes
        return num_rows in measured or (
            bool(measured) and min(measured) <= num_rows <= max(measured)
        )

    def pass_s(self, num_rows: float) -> float:
        """Predict the seconds of a pass; straight between whole numbers of rows."""
        low = math.floor(num_rows)
        seconds = self._fair_pass(low)
        if num_rows > low:
            seconds += (num_rows - low) * (self._fair_pass(low + 1) - seconds)
        return self.weather * seconds

    def draft_s(self, work: DraftWork) -> float:
        """Predict the seconds of the drafting of a round."""
        prices = zip(self._prices_of_drafting(), work.amounts, strict=True)
        return self.weather * sum(price * amount for price, amount in prices)

    def _prices_of_drafting(self) -> list[float]:
        if self._draft_prices or not self.passes:
            return self._draft_prices or [0.0] * 4
        plain = self._fair_pass(1)  # a head is one layer of the backbone or so
        return [0.01 * plain, 0.01 * plain, 0.03 * plain, 0.03 * plain]

    def _fair_pass(self, num_rows: int) -> float:
        if not self._curve:
            self._curve = self._read_curve()
        num_known = len(self._curve)
        if num_rows <= num_known:
            return self._curve[max(num_rows, 1) - 1]
        return self._curve[-1] + (num_rows - num_known) * self._row_beyond()

    def _read_curve(self) -> list[float]:
        """Read prices from one row on: straight between measured points, and never falling."""
        points = sorted(self.passes.items())
        seconds = _rising(_steadied(points), [price.weight for _, price in points])
        curve = [seconds[0]] * points[0][0]
        for i, ((low, _), (high, _)) in enumerate(pairwise(points)):
            slope = (seconds[i + 1] - seconds[i]) / (high - low)
            curve += [seconds[i] + slope * (n - low) for n in range(low + 1, high + 1)]
        return curve

    def _row_beyond(self) -> float:
        """Guess what a row costs beyond the last measured pass.

        Hopeful: such a guess is tried and corrected, a fearful one never.
        """
        last, first = len(self._curve), min(self.passes)
        if last == first:
            return GUESSED_ROW * self._curve[-1] / (1 + GUESSED_ROW * (last - 1))
        return (self._curve[-1] - self._curve[first - 1]) / (last - first)


def _steadied(points: Sequence[tuple[int, Price]]) -> list[float]:
    """Pull prices that were seldom measured towards the line between their neighbours."""
    seconds = [price.seconds for _, price in points]
    steadied = list(seconds)
    for i in range(1, len(points) - 1):
        (low, _), (here, price), (high, _) = points[i - 1 : i + 2]
        between = seconds[i - 1] + (seconds[i + 1] - seconds[i - 1]) * (here - low) / (high - low)
        share = NEIGHBOUR_WEIGHT / (NEIGHBOUR_WEIGHT + price.weight)
        steadied[i] += share * (between - steadied[i])
    return steadied


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the never falling values nearest to these: neighbours in the wrong order are pooled.

    More rows cannot cost less, so this is noise; and a price learned at a bad moment does not stand
    for ever just because nobody asks again.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (last, last_weight, num_last), (mean, pool_weight, num) = pools.pop(), pools.pop()
            both = pool_weight + last_weight
            pooled = (mean * pool_weight + last * last_weight) / both
            pools.append((pooled, both, num + num_last))
    return [mean for mean, _, num in pools for _ in range(num)]


def _surprise(seconds: float, expected: float) -> float:
    surprise = math.log(max(seconds, 1e-9) / max(expected, 1e-9))
    return max(-MAX_SURPRISE, min(surprise, MAX_SURPRISE))
