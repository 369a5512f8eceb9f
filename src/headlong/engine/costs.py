"""What passes and drafts cost here and now, learned from every round.

In:  seconds of measured rounds. Out: predicted seconds for any number of rows and draft steps: of
the pass, and of all that a round does beside it.
A machine's speed wanders: clock, neighbours, and a host that moves its cores apart or together,
which makes long passes dearer and short ones cheaper. What all measurements share goes into two
factors that follow quickly, the *weather* and its *tilt*; what makes one pass dearer than another
goes into prices relative to them, which move slowly. What is read of caches is known beforehand and
no part of a price: eight long contexts are not eight short ones.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

FIRST_SAMPLES = 3
"""So many first measurements of a price are kept; their lower median is believed."""

FULL_WEIGHT = 20
"""Measurements after which a price is believed as firmly as any."""

NEIGHBOUR_WEIGHT = 3.0
"""For how many measurements the line between the neighbours of a price counts."""

PRICE_SPEED = 0.04
"""How much of a surprise a well-known price takes over with every pass since it was looked at."""

MAX_PRICE_SPEED = 0.3
"""The most, however long ago that was: the world has changed since, but one look may be wrong."""

WEATHER_SPEED = 0.2
"""How much of a surprise the weather takes over."""

TILT_SPREAD = 0.02
"""How far off the tilt is thought to be at any time. Beside the scatter of the clock this says how
much of a surprise it takes over: nearly all from an exact clock, little from a noisy one."""

LEAST_SCATTER = 0.015
"""No clock is trusted to be more exact: curves do not tilt as evenly as the formula says."""

SCATTER_SPEED = 0.05
"""How quickly the scatter of the clock follows the size of surprises."""

USUAL_SPEED = 0.1
"""How quickly the usual pass follows the passes that are run."""

MAX_SURPRISE = 0.25
"""Logarithm of the largest surprise that is learned from: a stalled pass is not a new price."""

GUESSED_ROW = 0.08
"""Price of one more row, relative to a plain pass, before any is known; hopeful, so it is tried."""

BESIDE_SPEED = 0.2
"""How much of a surprise the prices of what rounds do beside their passes take over."""

LEAST_NET = 0.25
"""Share of a pass that is not reading caches, whatever is thought of that."""

GUESSED_LOOK = 0.003
"""Price of looking at one row that waited, relative to a plain pass, before any is known."""

MIN_LOOK = 16
"""Rows below which what is seen of that price is mostly other things."""


@dataclass(slots=True)
class Price:
    """What something costs in fair weather."""

    seconds: float
    num_seen: int = 1
    seen_at: int = 0
    """Which of all passes it was measured in last."""
    _first: list[float] = field(default_factory=list)

    def observe(self, seconds: float, now: int) -> None:
        """Learn from one more measurement, which is the `now`-th of all passes."""
        self.num_seen += 1
        num_since, self.seen_at = now - self.seen_at, now
        if self.num_seen > FIRST_SAMPLES:
            aged = min(1 - (1 - PRICE_SPEED) ** num_since, MAX_PRICE_SPEED)
            speed = max(aged, 1 / self.num_seen)
            self.seconds *= math.exp(speed * _surprise(seconds, self.seconds))
            return
        # Cold caches only ever make it dearer, hence the lower one of two.
        self._first = [*(self._first or [self.seconds]), seconds]
        self.seconds = median_low(self._first)

    @property
    def weight(self) -> float:
        """How firmly it is believed."""
        return float(min(self.num_seen, FULL_WEIGHT))


class DraftWork(NamedTuple):
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


class Sighting(NamedTuple):
    """What one pass said about the weather."""

    size: float = 0.0
    """Logarithm of its rows."""
    surprise: float = 0.0
    trust: float = 0.0
    """How well its price is known, up to 1."""


@dataclass(slots=True)
class CostModel:
    """Seconds of a backbone pass by number of rows, and of what a round does beside it."""

    passes: dict[int, Price] = field(default_factory=dict)
    weather: float = 1.0
    """What a pass of the usual size costs now, against its price."""
    tilt: float = 0.0
    """How much dearer longer passes are now than that: a pass twice as long by 2 ** tilt."""
    reading: float = 0.0
    """What sequences of this round have in their caches, against the weights: read beside them."""
    _num_passes: int = 0
    _last: Sighting = field(default_factory=Sighting)
    """The pass before; its surprise is what weather and tilt have left of it."""
    _scatter: float = 0.1
    _usual_size: float = 0.0
    """Mean logarithm of the rows of the latest passes."""
    _pivot: float = 0.0
    """The usual size that weather and tilt refer to; moves when the curve is read anew."""
    _plain_beside: float = 0.0
    """What a round without drafts does beside its pass: planning, booking, handing out."""
    _draft_prices: list[float] = field(default_factory=list)
    _look: float | None = None
    """What it takes the drafter to look at one row that waited for it."""
    _curve: list[float] = field(default_factory=list)

    def observe_pass(self, num_rows: int, seconds: float) -> None:
        """Learn from one measured pass of a round."""
        self._num_passes += 1
        size = math.log(num_rows)
        price = self.passes.get(num_rows)
        if price is None:
            price = Price(self._net(seconds) / self._factor(size), seen_at=self._num_passes)
            self.passes[num_rows] = price
            self._last = Sighting(size)
            self._curve = []
            return
        surprise = _surprise(seconds, self._expect(size, price))
        self._scatter += SCATTER_SPEED * (abs(surprise) - self._scatter)
        # A price that is hardly known is itself the likelier cause of a surprise.
        trust = price.weight / FULL_WEIGHT
        turn = self._turn(size, surprise, trust)
        self.tilt += turn  # about the usual pass, so the weather there stays
        level = WEATHER_SPEED * trust * surprise - turn * (self._usual_size - self._pivot)
        self.weather *= math.exp(level)
        self._usual_size += USUAL_SPEED * (size - self._usual_size)
        expected = self._expect(size, price)
        left = _surprise(seconds, expected)
        is_stall = abs(surprise) == MAX_SURPRISE  # then it is no measure for the next pass
        self._last = Sighting(size, left, 0.0 if is_stall else trust)
        price.observe(price.seconds * seconds / expected, self._num_passes)

    def _expect(self, size: float, price: Price) -> float:
        """Return what a pass of this price should take now."""
        return self._factor(size) * price.seconds + self._reading_s()

    def _net(self, seconds: float) -> float:
        """Return what a pass took beside reading the caches."""
        if not self.passes:  # what reading weights takes is known from nothing else
            return seconds / (1 + self.reading)
        return max(seconds - self._reading_s(), LEAST_NET * seconds)

    def _reading_s(self) -> float:
        """Return how long reading the caches takes: as long as reading as much of the weights."""
        return self.weather * self.reading * self._fair_pass(1)

    def _turn(self, size: float, surprise: float, trust: float) -> float:
        """Return by how much the tilt turns.

        Two passes in a row have the same weather, so what surprises in one and not in the other
        comes from their sizes. While all are of one size nothing is learned, and nothing forgotten.
        """
        last = self._last
        lever = size - last.size
        contrast = min(trust, last.trust) * _clipped(surprise - last.surprise)
        doubt = max(self._scatter, LEAST_SCATTER) / TILT_SPREAD
        return contrast * lever / (lever**2 + doubt**2)  # a Kalman filter's gain

    def refresh(self) -> None:
        """Read the curve anew; between two calls only the weather moves predictions."""
        self.weather *= math.exp(self.tilt * (self._usual_size - self._pivot))
        self._pivot = self._usual_size
        self._curve = []

    def observe_beside(self, work: DraftWork, seconds: float) -> None:
        """Learn from what one round did beside its pass."""
        if not self.passes:
            return
        expected = self.beside_s(work) / self.weather
        most = max(expected, 0.02 * self._fair_pass(1))  # a stall is no new price
        error = max(-most, min(seconds / self.weather - expected, most))
        if not work.num_asks:
            self._plain_beside = max(0.0, self._plain_beside + BESIDE_SPEED * error)
            return
        amounts = work.amounts
        size = sum(amount * amount for amount in amounts)
        self._draft_prices = [
            max(0.0, price + BESIDE_SPEED * error * amount / size)
            for price, amount in zip(self._prices_of_drafting(), amounts, strict=True)
        ]

    def observe_look(self, num_rows: int, seconds: float) -> None:
        """Learn from a drafter that looked at so many rows that had waited for it."""
        if not self.passes or num_rows < MIN_LOOK:
            return
        price = self.look_s(1) / self.weather
        seen = max(0.0, min(seconds / num_rows / self.weather, 2 * price))  # a stall is no price
        self._look = price + BESIDE_SPEED * (seen - price)

    def look_s(self, num_rows: int) -> float:
        """Predict how long the drafter takes to look at so many rows that waited for it."""
        price = GUESSED_LOOK * self._fair_pass(1) if self._look is None else self._look
        return self.weather * price * num_rows

    def frozen(self) -> "CostModel":
        """Return the prices as they are now, for others to read later; learns nothing."""
        self._fair_pass(1)  # the curve must have been read, for what it is read from goes on
        return copy(self)

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
        return self.weather * seconds + self._reading_s()

    def beside_s(self, work: DraftWork) -> float:
        """Predict the seconds of all that a round does beside its pass."""
        return self.weather * self._plain_beside + self.draft_s(work)

    def draft_s(self, work: DraftWork) -> float:
        """Predict how much longer a round takes beside its pass for so much drafting."""
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
        tilted = [one.seconds * self._factor(math.log(num)) / self.weather for num, one in points]
        seconds = _rising(_steadied(points, tilted), [price.weight for _, price in points])
        curve = [seconds[0]] * points[0][0]
        for i, ((low, _), (high, _)) in enumerate(pairwise(points)):
            slope = (seconds[i + 1] - seconds[i]) / (high - low)
            curve += [seconds[i] + slope * (n - low) for n in range(low + 1, high + 1)]
        return curve

    def _factor(self, size: float) -> float:
        """Return what weather and tilt make of the price of a pass."""
        return self.weather * math.exp(self.tilt * (size - self._pivot))

    def _row_beyond(self) -> float:
        """Guess what a row costs beyond the last measured pass.

        Hopeful: such a guess is tried and corrected, a fearful one never.
        """
        last, first = len(self._curve), min(self.passes)
        if last == first:
            return GUESSED_ROW * self._curve[-1] / (1 + GUESSED_ROW * (last - 1))
        return (self._curve[-1] - self._curve[first - 1]) / (last - first)


def _steadied(points: Sequence[tuple[int, Price]], seconds: Sequence[float]) -> list[float]:
    """Pull seconds of seldom measured passes towards the line between their neighbours."""
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
    return _clipped(math.log(max(seconds, 1e-9) / max(expected, 1e-9)))


def _clipped(surprise: float) -> float:
    return max(-MAX_SURPRISE, min(surprise, MAX_SURPRISE))
