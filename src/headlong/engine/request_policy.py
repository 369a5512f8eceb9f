"""The draft policy's record of one request: its `mtp`, observations and decisions.

It turns a decision of `draft_policy.py`, which is made for all running requests together, into a
plan for each round.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headlong.config import MtpMode
from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.drafters.drafter import GRAMMAR, NGRAM, Draft
from headlong.engine.survival import (
    MAX_AUTO_TOKENS,
    SHARED_MEMORY,
    CalibrationCounts,
    Expected,
    Survival,
)

OWN_MEMORY = 0.98
"""Weight of earlier observations of a request after a new one, so that changes are noticed."""

PROBE_TOKENS = 2
"""Draft tokens of a probe."""

INTERVAL = 8
"""Rounds between two decisions, and the fewest between two probes or two plain rounds."""


@dataclass(slots=True)
class SharedRecord:
    """Observations of all requests of similar temperature."""

    survival: Survival = field(default_factory=Survival)
    calibrations: defaultdict[str, CalibrationCounts] = field(
        default_factory=lambda: defaultdict(CalibrationCounts, {NGRAM: CalibrationCounts()})
    )
    """Calibration of each drafter's probabilities."""

    def thresholds(self, keep: float, extend: float) -> dict[str, Threshold]:
        """Return thresholds by drafter; one more token keeps the mean of a draft's chance."""
        return {
            drafter: Threshold(keep, extend / counts.mean, counts.read())
            for drafter, counts in self.calibrations.items()
        }


class Forecast(NamedTuple):
    """Expected time and tokens of a round, and of one without drafts."""

    num_tokens: int
    """The longest draft that pays for this request, or the best one if none pays."""
    expected_tokens: float
    """Tokens of this request."""
    round_s: float
    plain_s: float
    gain: float
    """Tokens per second of all requests together, over those of a round without drafts."""


@dataclass(slots=True, eq=False)
class RequestPolicy:
    """Observations of one request, and the decisions for it."""

    mtp: MtpMode
    shared: SharedRecord = field(default_factory=SharedRecord)
    survival: Survival = field(default_factory=Survival)
    num_tokens: int = 0
    """The draft length decided for "auto"; 0 while drafting does not pay."""
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)
    forecast: Forecast | None = None
    """Forecast of the last decision; None before the first one."""
    honours_k: bool = False
    """Whether a fixed K is used exactly also beside other requests."""
    is_bound: bool = False
    """Whether a fixed K is an upper bound in this round."""
    num_bound_rounds: int = 0

    @property
    def is_auto(self) -> bool:
        """Whether the policy decides the draft length, up to K if a fixed K is an upper bound."""
        return self.mtp == "auto" or self.is_bound

    @property
    def num_fixed(self) -> int:
        """Draft tokens of this round if K is fixed, otherwise 0."""
        return self.mtp if isinstance(self.mtp, int) and not self.is_bound else 0

    @property
    def most_tokens(self) -> int:
        """Most draft tokens that the policy may choose."""
        return min(self.mtp, MAX_AUTO_TOKENS) if isinstance(self.mtp, int) else MAX_AUTO_TOKENS

    def enter_round(self, num_requests: int) -> None:
        """Set whether K is an upper bound, by the number of requests in the next pass.

        Rows of one request make the pass longer for all, so beside others K is not enforced.
        """
        self.is_bound = isinstance(self.mtp, int) and num_requests > 1 and not self.honours_k
        self.num_bound_rounds += self.is_bound

    def expected(self) -> Expected:
        """Return expected rows and tokens of drafts."""
        rows, tokens = self.survival.expect(self.shared.survival)
        return Expected(rows[: self.most_tokens], tokens[: self.most_tokens])

    def decide(
        self, num_tokens: int, thresholds: Mapping[str, Threshold], forecast: Forecast
    ) -> None:
        """Store a decision."""
        self.num_tokens, self.thresholds, self.forecast = num_tokens, thresholds, forecast

    def plan(self, *, is_plain: bool = False, is_probe: bool = False) -> DraftPlan:
        """Return the plan of the next round, which may be a plain round or a probe."""
        if not self.is_auto:
            return DraftPlan(self.num_fixed, is_idle=not self.num_fixed)
        if is_plain or self.forecast is None:
            return DraftPlan(is_idle=not self.num_tokens)
        if self.num_tokens:
            # One more than decided: thresholds end what does not pay, and costs beyond it that
            # were learned at a bad moment are measured again.
            return DraftPlan(min(self.num_tokens + is_probe, self.most_tokens), self.thresholds)
        if is_probe:
            return DraftPlan(min(PROBE_TOKENS, self.most_tokens), is_idle=True)
        return DraftPlan(1, self.thresholds, is_idle=True, only_lookup=True)

    def observe(self, plan: DraftPlan, draft: Draft, num_accepted: int) -> None:
        """Learn from the result of a draft; from an n-gram lookup only its calibration."""
        if plan.runs_drafter:
            seen = (plan.num_tokens, len(draft.token_ids), num_accepted)
            # Probes are few, so only the newest show whether acceptance has changed.
            own_memory = OWN_MEMORY**INTERVAL if plan.is_idle else OWN_MEMORY
            self.survival.observe(*seen, own_memory)
            self.shared.survival.observe(*seen, SHARED_MEMORY)
        if draft.sources and draft.sources[0] != GRAMMAR:
            self.shared.calibrations[draft.sources[0]].observe(draft.probs, num_accepted)
