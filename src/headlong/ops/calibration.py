"""Calibration of a drafter's confidence: from its probability of a token to its acceptance chance.

A table by bins of probability, learned by the draft policy. Kernels that compute whole drafts read
it as well, since a draft ends where its chance no longer pays for one more step.
"""

from bisect import bisect_right
from dataclasses import dataclass

EDGES = (0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Edges between bins of probability."""


def bin_of(prob: float) -> int:
    """Return the bin of a probability; one on an edge belongs to the bin above."""
    return bisect_right(EDGES, prob)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Calibration:
    """The chance of acceptance for every bin of probability."""

    chances: tuple[float, ...]
    """One for every bin: below the first edge, between two of them, from the last one on."""

    def __call__(self, prob: float) -> float:
        """Return the chance that a token of this probability is accepted if all before it are."""
        if prob != prob:  # NaN is in no bin
            return prob
        return self.chances[bin_of(prob)]
