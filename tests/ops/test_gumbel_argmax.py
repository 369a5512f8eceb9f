"""The Gumbel argmax is the same token as adding noise to every token would."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headlong.arrays import FloatArray, IntArray
from headlong.ops import gumbel_argmax as gumbel_argmax_module
from headlong.ops.gumbel_argmax import LogitsRow, gumbel_argmax
from headlong.ops.noise import BitsArray, gumbel, gumbel_of, noise_key


def slow_argmax(logits: FloatArray, ids: IntArray, temperature: float, position: int) -> int:
    best = float(logits.max())
    scores = (logits.astype(np.float64) - best) / temperature + gumbel(3, position, ids)
    return int(scores.argmax())


def fast_argmax(logits: FloatArray, ids: IntArray | None, temperature: float, position: int) -> int:
    row = LogitsRow(logits, ids, float(logits.max()), temperature)
    return gumbel_argmax(row, noise_key(3, position))


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(2, 30_000),
    st.sampled_from([0.0, 0.5, 2.0, 5.0, 20.0]),
    st.sampled_from([1e-6, 0.1, 0.3, 0.7, 1.0, 5.0, 100.0]),
)
def test_winner_is_the_full_argmax(
    seed: int, num_tokens: int, spread: float, temperature: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(num_tokens) * spread).astype(np.float32)
    logits[rng.integers(num_tokens)] += 3 * spread
    position = int(rng.integers(1_000_000))
    everyone = np.arange(num_tokens)
    winner = slow_argmax(logits, everyone, temperature, position)
    assert fast_argmax(logits, None, temperature, position) == winner


def test_far_tokens_win_as_often_as_they_should() -> None:
    """Guards the pruning: a long tail of unlikely tokens must keep its exact share."""
    logits = np.full(4000, -12.0, dtype=np.float32)  # far beyond the near band
    logits[7] = 0
    tail = 3999 * math.exp(-12)
    num_far = sum(fast_argmax(logits, None, 1.0, position) != 7 for position in range(6000))
    expected = 6000 * tail / (1 + tail)
    assert abs(num_far - expected) < 4 * math.sqrt(expected)


def test_noise_belongs_to_token_ids_not_columns() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(5000).astype(np.float32)
    order = rng.permutation(5000)
    for position in range(30):
        column = fast_argmax(logits[order], order, 0.7, position)
        assert order[column] == fast_argmax(logits, None, 0.7, position)


def test_impossible_tokens_never_win() -> None:
    logits = np.full(3000, -np.inf, dtype=np.float32)
    logits[1234] = -5
    assert fast_argmax(logits, None, 100.0, 0) == 1234


def test_more_equal_tokens_than_probes_are_all_considered() -> None:
    logits = np.zeros(20_000, dtype=np.float32)
    winners = [fast_argmax(logits, None, 1.0, position) for position in range(200)]
    assert winners == [slow_argmax(logits, np.arange(20_000), 1.0, p) for p in range(200)]
    assert max(winners) > 18_000


def test_few_logarithms_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large vocabulary only a few tokens are computed."""
    num_logs = 0

    def counting(bits: BitsArray) -> object:
        nonlocal num_logs
        num_logs += len(bits)
        return gumbel_of(bits)

    monkeypatch.setattr(gumbel_argmax_module, "gumbel_of", counting)
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal(50_000) * 3).astype(np.float32)
    logits[100] = 16
    fast_argmax(logits, None, 0.7, 0)
    assert num_logs < 1500
