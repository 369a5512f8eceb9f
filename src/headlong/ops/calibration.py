"""Calibration of a drafter's confidence: from its probability of a token to the chance to stand.

A table by ranges of probability, learned by the draft policy. Kernels that make whole drafts read
it as well, since a draft ends where its chance no longer pays for one more step.
"""

from bisect import bisect_right
from dataclasses import dataclass

EDGES = (0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Borders between ranges of probability."""


def range_of(prob: float) -> int:
    """Return the range of a probability; one on an edge belongs to the range above."""
    return bisect_right(EDGES, prob)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Calibration:
    """The chance to stand for every range of probability."""

    chances: tuple[float, ...]
    """One for every range: below the first edge, between two of them, from the last one on."""

    def __call__(self, prob: float) -> float:
        """Return the chance of a token of this probability to stand if all before it do."""
        if prob != prob:  # NaN lies in no range
            return prob
        return self.chances[range_of(prob)]
