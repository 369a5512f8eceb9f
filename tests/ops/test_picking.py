"""Compiled picking against the numpy definitions."""

import numpy as np
import pytest

from headlong.decode.filters import relative_probs
from headlong.decode.race import Field, race_in_numpy
from headlong.ops import picking
from native_parts import random


@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("temperature", [1e-300, 0.05, 0.8, 10.0])
@pytest.mark.parametrize("has_ids", [False, True])
def test_race_has_the_winner_of_the_definition(
    spread: float, temperature: float, has_ids: bool
) -> None:
    rng = np.random.default_rng(1)
    for size in (1, 5, 1025, 20_000):
        logits = random(size, size) * np.float32(spread)
        ids = np.sort(rng.choice(200_000, size, replace=False)) if has_ids else None
        field = Field(logits, ids, float(logits.max()), temperature)
        for key in rng.integers(0, 2**63, 20).tolist():
            winner = picking.race(logits, ids, field.best, temperature, key)
            assert winner == race_in_numpy(field, key)


def test_equal_scores_go_to_the_lowest_column() -> None:
    logits = np.zeros(3000, dtype=np.float32)
    ids = np.full(3000, 7)  # the same noise for all
    assert picking.race(logits, ids, 0.0, 1.0, 5) == 0


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 50.0])
def test_total_probability_is_good_to_six_digits(temperature: float) -> None:
    logits = random(2, 16_385) * np.float32(5)
    best = float(logits.max())
    expected = relative_probs(logits, best, temperature).sum()
    assert picking.sum_relative(logits, best, temperature) == pytest.approx(expected, rel=1e-5)


def test_malformed_rows_are_refused() -> None:
    logits = random(3, 10)
    with pytest.raises(ValueError, match="differ in number"):
        picking.race(logits, np.arange(9), 0.0, 1.0, 1)
    with pytest.raises(ValueError, match="finite"):
        picking.race(logits, None, float("nan"), 1.0, 1)
    with pytest.raises(ValueError, match="no logits"):
        picking.race(logits[:0], None, 0.0, 1.0, 1)
