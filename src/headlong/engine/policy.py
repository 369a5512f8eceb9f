"""How many draft tokens is this sequence worth? One request's side of the decision.

Holds what a sequence has shown, what was decided for it, and the words to explain it. The decision
itself is made for all running sequences together in `planner.py`, since they share the rows of a
pass. No choice can change text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headlong.config import MtpMode
from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.engine.chances import (
    MAX_AUTO_TOKENS,
    OWN_MEMORY,
    SHARED_MEMORY,
    Confidence,
    Expected,
    Ladders,
    Look,
    Priors,
    expect,
    make_ladders,
    priors_from,
)

FIRST_PROBE = 8
"""Rounds after which a sequence that does not draft tries it; doubles from there."""

MAX_PROBE_INTERVAL = 128

HOPELESS_INTERVAL = 512
"""The same where rows are so dear that not even a perfect draft would pay; prices may change."""

PROBE_MEMORY = 0.8
"""What such a try leaves of what was known of the sequence."""

PROBE_TOKENS = 2
"""Draft tokens of such a try."""

REACH = 2
"""Draft tokens beyond the length decided for a sequence that runs alone, where its drafter is sure
of them: thresholds end what does not pay, and prices that nobody looks at would stay wrong."""

LOOK_INTERVAL = 32
"""Rounds between looks at deeper and less sure drafts than those that pay."""


@dataclass(slots=True)
class Experience:
    """What all requests of like temperature have shown."""

    ladders: Ladders = field(default_factory=lambda: make_ladders(SHARED_MEMORY))
    confidences: dict[str, Confidence] = field(default_factory=dict)
    num_looks: int = 0
    """Rounds it was learned from: while this stands still, so does every expectation."""
    _priors: tuple[int, Priors] | None = None

    def observe(self, look: Look) -> None:
        """Learn from one round of one request."""
        self.ladders.observe(look)
        self.num_looks += 1

    def priors(self) -> Priors:
        """Return the chances of a request that has not shown its own."""
        if self._priors is None or self._priors[0] != self.num_looks:
            self._priors = (self.num_looks, priors_from(self.ladders))
        return self._priors[1]

    def confidence(self, source: str) -> Confidence:
        """Return what the confidence of a drafter is worth."""
        return self.confidences.setdefault(source, Confidence())


REST = DraftPlan(0, is_idle=True)
TRY = DraftPlan(PROBE_TOKENS, is_idle=True)  # and rest again, unless it shows that drafts pay


def within(wishes: Sequence[DraftPlan], max_rows: int) -> list[DraftPlan]:
    """Shorten the longest drafts until the round's rows are within the budget."""
    lengths = [wish.num_tokens for wish in wishes]
    num_over = len(wishes) + sum(lengths) - max_rows
    while num_over > 0 and max(lengths) > 0:
        lengths[lengths.index(max(lengths))] -= 1
        num_over -= 1
    return [wish.at_most(length) for wish, length in zip(wishes, lengths, strict=True)]


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a round promises for one sequence, beside what plain decoding does."""

    num_tokens: int
    """The longest draft that pays, or that would come nearest to it."""
    expected_tokens: float
    round_s: float
    plain_s: float
    """Seconds of the same round without this sequence's draft."""
    gain: float
    """Tokens per second of all sequences together, with and without this draft."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the planner decided for one sequence."""

    num_tokens: int
    thresholds: Mapping[str, Threshold]
    """What drafts must be worth; where there are none, what copies must be."""
    is_hopeless: bool
    """Whether not even a draft that stands as a whole would pay."""
    prospect: Callable[[], Prospect]
    """Tells on demand, maybe another thread, what the decision promises."""


@dataclass(slots=True, eq=False)
class Policy:
    """What one sequence has shown, and what was decided for it."""

    mtp: MtpMode
    experience: Experience = field(default_factory=Experience)
    ladders: Ladders = field(default_factory=lambda: make_ladders(OWN_MEMORY))
    current: int = 0
    """The draft length decided for "auto" now; 0 while drafting does not pay."""
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    num_waiting: int = 0
    """Rows that the drafter must look at before it can draft."""
    _ask: Callable[[], Prospect] | None = None
    _promised: Prospect | None = None
    """What `_ask` has answered."""
    _is_hopeless: bool = False
    _probe_interval: int = FIRST_PROBE
    _rounds_off: int = 0
    _rounds_on: int = 0
    _expected: tuple[int, Expected] | None = None

    @property
    def is_auto(self) -> bool:
        """Whether measured gain decides."""
        return self.mtp == "auto"

    def expected(self) -> Expected:
        """Return what drafting this sequence is expected to take and to give."""
        num_looks = self.experience.num_looks  # its own looks are among them
        if self._expected is None or self._expected[0] != num_looks:
            self._expected = (num_looks, expect(self.ladders, self.experience.priors()))
        return self._expected[1]

    @property
    def is_decided(self) -> bool:
        """Whether a plan has said anything about this sequence."""
        return self._ask is not None

    @property
    def prospect(self) -> Prospect | None:
        """What the last decision promises; None before the first one."""
        if self._promised is None and self._ask is not None:
            self._promised = self._ask()
        return self._promised

    def decide(self, decision: Decision) -> None:
        """Take a decision over."""
        if decision.num_tokens and not self.current:
            self._probe_interval, self._rounds_off = FIRST_PROBE, 0
        self.current, self.thresholds = decision.num_tokens, decision.thresholds
        self._ask, self._promised = decision.prospect, None
        self._is_hopeless = decision.is_hopeless

    def wish(self, *, can_probe: bool = True, is_alone: bool = False) -> DraftPlan:
        """Return what to draft in the next round; a try that is due can be put off."""
        if self.mtp == "off":
            return REST
        if not self.is_auto:
            assert isinstance(self.mtp, int)
            return DraftPlan(self.mtp)
        if not self.current:
            return self._probe(can_probe)
        self._rounds_on += 1
        reach = REACH if is_alone else 0
        thresholds: Mapping[str, Threshold] = self.thresholds
        if self._rounds_on % LOOK_INTERVAL == 0:
            reach = max(reach, 1)
            thresholds = _halved(thresholds)
        return DraftPlan(min(self.current + reach, MAX_AUTO_TOKENS), thresholds)

    def rest(self) -> DraftPlan:
        """Return a wish for nothing, now and soon, but copies where they pay."""
        self._rounds_off += 1
        if not self.thresholds:
            return REST
        thresholds = (
            self.thresholds if self._rounds_off % LOOK_INTERVAL else _halved(self.thresholds)
        )
        return DraftPlan(1, thresholds, is_idle=True, only_lookup=True)

    def plain_wish(self) -> DraftPlan:
        """Return a wish for no draft, where that is ours to say; whoever rests goes on resting."""
        if not self.is_auto:
            return self.wish()
        return DraftPlan(0) if self.current else REST

    def observe(self, look: Look) -> None:
        """Learn from a round that was asked for drafts."""
        if self.is_auto and not self.current:
            # While off there are few looks, and only the newest tell whether the subject changed.
            self.ladders.fade(PROBE_MEMORY)
            if look.num_accepted == look.num_asked:
                self._probe_interval = FIRST_PROBE
        self.ladders.observe(look)
        self.experience.observe(look)

    @property
    def off_reason(self) -> str | None:
        """Why "auto" does not draft now; None when it does, or when it was not asked."""
        if not self.is_auto or self.current:
            return None
        seen = self.prospect
        if seen is None:
            return None
        return (
            f"Drafting does not pay here: the best draft, K={seen.num_tokens}, would run "
            f"at {seen.gain:.2f} ×."
        )

    def explain(self) -> str:
        """Say in plain words what was decided and why."""
        if self.mtp == "off":
            return "No drafts: the request asked for none."
        if not self.is_auto:
            return f"Always drafts K={self.mtp}: the request asked for that."
        seen = self.prospect
        if seen is None:
            return "Not decided yet: a plain pass is measured first."
        numbers = (
            f"with K={seen.num_tokens} a round is expected to give {seen.expected_tokens:.2f} "
            f"tokens in {1000 * seen.round_s:.1f} ms, without drafts one in "
            f"{1000 * seen.plain_s:.1f} ms; all streams together run at {seen.gain:.2f} ×"
        )
        if self.current:
            return f"Drafts: {numbers}."
        return (
            f"Drafts nothing but copies of what stood before: {numbers}. "
            f"Tries again every {self._probe_interval} rounds."
        )

    @property
    def is_try_due(self) -> bool:
        """Whether it has not drafted for so long that it should see what that would give."""
        interval = HOPELESS_INTERVAL if self._is_hopeless else self._probe_interval
        is_off = self.is_auto and not self.current and self.is_decided
        return is_off and self._rounds_off + 1 >= interval

    def _probe(self, can_probe: bool) -> DraftPlan:
        """While off, draft a little now and then, ever more rarely: it may pay again."""
        if not can_probe or not self.is_try_due:
            return self.rest()
        self._rounds_off = 0
        self._probe_interval = min(2 * self._probe_interval, MAX_PROBE_INTERVAL)
        return TRY


def _halved(thresholds: Mapping[str, Threshold]) -> dict[str, Threshold]:
    """Return thresholds half as high: what does not pay must be looked at as well, now and then."""
    return {
        name: Threshold(threshold.keep / 2, threshold.extend / 2, threshold.calibration)
        for name, threshold in thresholds.items()
    }
