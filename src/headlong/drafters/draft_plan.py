"""The draft plan: length and thresholds of one sequence's next draft.

Made by `engine/draft_policy.py` once per round and sequence, and passed unchanged to the round and
the drafter. Thresholds are chances of acceptance, not probabilities: a calibration maps a drafter's
probability of a token to the chance that it is accepted.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from headlong.ops.calibration import Calibration


class Threshold(NamedTuple):
    """Least chances of acceptance; a draft ends where its chance is lower."""

    keep: float
    """If a token lowers the product of chances below this, it does not pay for its row."""
    extend: float
    """Below this product of chances, one more token does not pay for a draft step."""
    calibration: Calibration | None = None
    """Maps a token's probability to its chance if all before it are accepted; None: identity."""

    def chance(self, prob: float) -> float:
        """Return the chance that a token of this probability is accepted if all before it are."""
        return prob if self.calibration is None else self.calibration(prob)

    def count_kept(self, probs: Iterable[float]) -> int:
        """Return how many leading tokens pay for their rows; NaN ends the draft."""
        chance, num_kept = 1.0, 0
        for prob in probs:
            chance *= self.chance(prob)
            if not self.keep <= chance:
                break
            num_kept += 1
        return num_kept

    def can_extend(self, probs: Iterable[float]) -> bool:
        """Tell whether one more token would pay for its draft step."""
        return math.prod(self.chance(prob) for prob in probs) >= self.extend


NO_THRESHOLD = Threshold(0.0, 0.0)

NO_THRESHOLDS: Mapping[str, Threshold] = MappingProxyType({})


class DraftPlan(NamedTuple):
    """What to draft for one sequence in the next round."""

    num_tokens: int = 0
    """Most tokens of the draft."""
    thresholds: Mapping[str, Threshold] = NO_THRESHOLDS
    """By name of the drafter; drafters without one have no threshold."""
    is_idle: bool = False
    """Whether drafts do not pay now, so that rows may stay in the backlog."""
    only_lookup: bool = False
    """Whether only tokens from n-gram lookup are drafted, without running a model."""

    @property
    def runs_drafter(self) -> bool:
        """Whether the drafter's model runs, and so must have observed every row."""
        return self.num_tokens > 0 and not self.only_lookup

    def at_most(self, num_tokens: int) -> "DraftPlan":
        """Return the same plan with at most `num_tokens` tokens."""
        return self if self.num_tokens <= num_tokens else self._replace(num_tokens=num_tokens)

    def threshold(self, drafter: str) -> Threshold:
        """Return the threshold for the drafter of this name."""
        return self.thresholds.get(drafter, NO_THRESHOLD)


NO_PLAN = DraftPlan()
"""No draft in this round; the drafter observes every row at once."""
