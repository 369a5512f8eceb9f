"""Log-probabilities are the raw model's, in float64, best first."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slow_sampling
from headlong.decode.logprobs import token_logprob


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=40),
    st.integers(0, 20),
    st.integers(0, 1),
)
def test_logprobs_are_log_softmax(logits: list[float], num_top: int, token_id: int) -> None:
    total = math.log(math.fsum(math.exp(x - max(logits)) for x in logits)) + max(logits)
    found = token_logprob(np.array(logits, dtype=np.float32), token_id, num_top)
    ranking = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:num_top]
    assert found.token_id == token_id
    assert found.logprob == pytest.approx(logits[token_id] - total, rel=1e-12, abs=1e-12)
    assert [top.token_id for top in found.top] == ranking
    expected = [logits[i] - total for i in ranking]
    assert [top.logprob for top in found.top] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_float32_would_not_be_enough() -> None:
    """Guards the precision: a sum of many small terms is lost in float32."""
    row = np.zeros(200_000, dtype=np.float32)
    row[0] = 20
    exact = 20 - math.log(math.exp(20) + 199_999)
    assert token_logprob(row, 0, 0).logprob == pytest.approx(exact, rel=1e-10)


def test_impossible_tokens_are_not_listed() -> None:
    row = slow_sampling.rows([0, -math.inf, 0])[0]
    assert [top.token_id for top in token_logprob(row, 0, 3).top] == [0, 2]
