"""What a drafter's probabilities are worth: behind each of them, the chance to stand.

A table by ranges of probability, learned elsewhere (`engine.chances`). Kernels that make whole
drafts read it as well, since a draft ends where its chance is no longer worth one more step.
"""

from bisect import bisect_right
from dataclasses import dataclass

EDGES = (
    0.01,
    0.03,
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.97,
)
"""Borders between probabilities that are judged together."""


def range_of(prob: float) -> int:
    """Return in which range a probability lies; what lies on an edge belongs to the one above."""
    return bisect_right(EDGES, prob)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Worth:
    """What probabilities of a drafter are worth, as far as was learned."""

    chances: tuple[float, ...]
    """One for every range: below the first edge, between two of them, from the last one on."""

    def __call__(self, prob: float) -> float:
        """Return the chance of a token of this probability to stand if all before it do."""
        if prob != prob:  # no number has no place between edges
            return prob
        return self.chances[range_of(prob)]
