"""The first position where two decodings differ.

In:  two sequences of tokens or characters. Out: a position. MTP must not change a text, so every
place that compares decodings, from the doctor to a benchmark, asks here.
"""

from collections.abc import Sequence
from typing import Any


def find_divergence(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """Return the first position at which two sequences differ; None when they are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    return None if place == len(one) == len(other) else place
