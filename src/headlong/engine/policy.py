"""How many draft tokens is a sequence worth now? Measured time and measured acceptance decide.

A round with K draft tokens costs a draft of K and a pass over K+1 rows; it yields one token plus
every depth's chance to stand. "auto" takes the K with the most tokens per second, 0 included. Costs
are learned per backbone and shared; chances are learned per sequence. No choice can change text.
"""

import math
from dataclasses import dataclass, field

from headlong.config import MtpMode

MAX_AUTO_TOKENS = 8
"""The deepest draft "auto" considers."""

SMOOTHING = 0.15
"""Weight of the newest cost measurement."""

COLD_SAMPLES = 4
"""So many first measurements are taken at their best."""

MAX_SURPRISE = 0.25
"""How far, relative to what is believed, one measurement may lie for what is learned from it."""

PRIOR_CHANCE = 0.7
"""Assumed chance of a depth, given those before it, until it has been seen."""

PRIOR_WEIGHT = 2.0
"""How many observations the prior counts for."""

MEMORY = 0.98
"""What a look at a depth keeps of older ones, so that a change of subject is noticed."""

KEEP_MARGIN = 1.03
"""A new K must promise this much more than the current one; stops hopping back and forth."""

MAX_PROBE_INTERVAL = 256
"""While off, rounds between looks at whether drafting pays again; doubles from 8 up to this."""


@dataclass(slots=True)
class Price:
    """What something costs, learned from measurements."""

    seconds: float
    num_seen: int = 1

    def observe(self, seconds: float) -> None:
        """Learn from one more measurement."""
        self.num_seen += 1
        if self.num_seen <= COLD_SAMPLES:
            self.seconds = min(self.seconds, seconds)  # cold caches only ever make it dearer
            return
        # A neighbour that takes the core for a moment must not look like a new price.
        most = MAX_SURPRISE * self.seconds
        self.seconds += SMOOTHING * min(max(seconds - self.seconds, -most), most)


@dataclass(slots=True)
class CostModel:
    """Seconds of a backbone pass by number of rows, and of drafting one token."""

    passes: dict[int, Price] = field(default_factory=dict)
    draft_token: Price | None = None

    def observe(self, num_rows: int, verify_s: float, num_drafted: int, draft_s: float) -> None:
        """Learn from one measured round."""
        self.passes[num_rows] = _learn(self.passes.get(num_rows), verify_s)
        if num_drafted:
            self.draft_token = _learn(self.draft_token, draft_s / num_drafted)

    def round_s(self, num_draft_tokens: int) -> float:
        """Predict the seconds of a round with this many draft tokens."""
        draft_token_s = self.draft_token.seconds if self.draft_token is not None else 0.0
        return self._pass_s(num_draft_tokens + 1) + num_draft_tokens * draft_token_s

    def _pass_s(self, num_rows: int) -> float:
        """Read the curve: straight between measured points, flat beyond the last, never falling.

        Flat is hopeful on purpose: a hopeful guess is tried and corrected, a fearful one never. And
        no pass is believed to cost more than one over more rows, so a price learned at a bad moment
        does not stand for ever just because nobody asks again.
        """
        above = [(n, price.seconds) for n, price in self.passes.items() if n >= num_rows]
        below = [(n, price.seconds) for n, price in self.passes.items() if n < num_rows]
        ceiling = min((seconds for _, seconds in above), default=math.inf)
        if not below or not above:
            return ceiling if above else max(below)[1]
        (low, low_s), (high, high_s) = max(below), min(above)
        share = (num_rows - low) / (high - low)
        return min(low_s + share * (high_s - low_s), ceiling)


@dataclass(slots=True)
class Chances:
    """Per depth: how often it was reached with all before it standing, and how often it stood."""

    tried: list[float] = field(default_factory=lambda: [0.0] * MAX_AUTO_TOKENS)
    stood: list[float] = field(default_factory=lambda: [0.0] * MAX_AUTO_TOKENS)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from one verdict."""
        for depth in range(min(num_drafted, num_accepted + 1, MAX_AUTO_TOKENS)):
            self.tried[depth] = MEMORY * self.tried[depth] + 1
            self.stood[depth] = MEMORY * self.stood[depth] + (depth < num_accepted)

    def expected_tokens(self, num_draft_tokens: int) -> float:
        """Return the mean tokens of a round with this many draft tokens, next token included."""
        survival, total = 1.0, 1.0
        for depth in range(num_draft_tokens):
            stood = self.stood[depth] + PRIOR_WEIGHT * PRIOR_CHANCE
            survival *= stood / (self.tried[depth] + PRIOR_WEIGHT)
            total += survival
        return total


@dataclass(slots=True)
class Policy:
    """Decides the draft length of one sequence, round after round."""

    mtp: MtpMode
    costs: CostModel
    chances: Chances = field(default_factory=Chances)
    current: int = 3
    _probe_interval: int = 8
    _rounds_off: int = 0

    def choose(self) -> int:
        """Return how many tokens to draft in the next round."""
        if self.mtp == "off":
            return 0
        if self.mtp != "auto":
            return self.mtp
        if not self.costs.passes:
            return 0  # learn what a plain pass costs before anything is compared with it
        best = max(range(MAX_AUTO_TOKENS + 1), key=self._tokens_per_second)
        if self._tokens_per_second(best) > KEEP_MARGIN * self._tokens_per_second(self.current):
            self.current = best
        return self.current or self._probe()

    @property
    def off_reason(self) -> str | None:
        """Why "auto" does not draft now; None when it does, or when it was not asked."""
        if self.mtp != "auto" or self.current:
            return None
        best = max(range(1, MAX_AUTO_TOKENS + 1), key=self._tokens_per_second)
        gain = self._tokens_per_second(best) / self._tokens_per_second(0)
        return f"Drafting does not pay here: the best draft, K={best}, would run at {gain:.2f} ×."

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from a finished round."""
        self.chances.observe(num_drafted, num_accepted)
        if self.current or num_accepted:
            self._probe_interval = 8

    def _tokens_per_second(self, num_draft_tokens: int) -> float:
        return self.chances.expected_tokens(num_draft_tokens) / self.costs.round_s(num_draft_tokens)

    def _probe(self) -> int:
        """While off, draft two tokens now and then, ever more rarely: it may pay again."""
        self._rounds_off += 1
        if self._rounds_off < self._probe_interval:
            return 0
        self._rounds_off = 0
        self._probe_interval = min(2 * self._probe_interval, MAX_PROBE_INTERVAL)
        return 2


def _learn(price: Price | None, seconds: float) -> Price:
    if price is None:
        return Price(seconds)
    price.observe(seconds)
    return price
