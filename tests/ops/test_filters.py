"""Top-k, top-p and min-p keep exactly what the sorted lists of the slow truth keep."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import slow_sampling
from headlong.arrays import FloatArray
from headlong.config import SamplingParams
from headlong.decode.sampling import pick_rule
from headlong.ops.filters import (
    at_least,
    scale,
    surviving_columns,
    top_columns,
)
from headlong.ops.native.host import NativeHost

# Few distinct values, so that ties happen all the time.
coarse = st.integers(-12, 12).map(lambda n: n / 4)
fine = st.floats(-20, 20, width=32)
logit_rows = st.one_of(st.lists(coarse, min_size=1, max_size=40), st.lists(fine, min_size=1))
filter_params = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 2),
    top_k=st.integers(0, 45),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
)


def survivors(logits: FloatArray, params: SamplingParams) -> list[int]:
    """Return what both the definition and the kernels keep."""
    best, rule = float(logits.max()), pick_rule(params)
    kept: list[int] = surviving_columns(logits, best, rule).tolist()
    if rule.filters(len(logits)):
        assert NativeHost().surviving_columns(logits, best, rule).tolist() == kept
    return kept


@given(logit_rows, filter_params)
def test_filters_agree_with_sorted_lists(logits: list[float], params: SamplingParams) -> None:
    assume(not slow_sampling.is_on_the_edge(logits, params))
    row = np.array(logits, dtype=np.float32)
    assert survivors(row, params) == sorted(slow_sampling.survivors(logits, params))


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("seed", range(3))
def test_filters_agree_on_long_rows(spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(3000) * spread).astype(np.float32)
    for params in (
        SamplingParams(temperature=0.7, top_k=40),
        SamplingParams(temperature=0.7, top_k=2500),
        SamplingParams(temperature=0.7, top_p=0.95),
        SamplingParams(temperature=1.5, top_p=0.999, min_p=0.001),
        SamplingParams(temperature=0.7, top_k=100, top_p=0.9, min_p=0.05),
    ):
        assert survivors(row, params) == sorted(slow_sampling.survivors(row.tolist(), params))


def test_no_filter_is_known_beforehand_and_keeps_all() -> None:
    row = slow_sampling.rows([1, 2, 3])[0]
    for params in (SamplingParams(temperature=1), SamplingParams(temperature=1, top_k=3)):
        assert not pick_rule(params).filters(len(row))
        assert survivors(row, params) == [0, 1, 2]


def test_top_k_ties_keep_lowest_ids() -> None:
    row = slow_sampling.rows([1, 5, 5, 5, 0, 5])[0]
    assert survivors(row, SamplingParams(temperature=1, top_k=2)) == [1, 2]
    assert survivors(row, SamplingParams(temperature=1, top_k=4)) == [1, 2, 3, 5]


def test_top_k_of_tied_long_row_is_exact() -> None:
    row = np.zeros(5000, dtype=np.float32)
    row[4000] = 1
    assert survivors(row, SamplingParams(temperature=1, top_k=3)) == [0, 1, 4000]


@pytest.mark.parametrize(("top_p", "num_kept"), [(0.05, 1), (0.1, 1), (0.11, 2), (0.5, 5), (1, 10)])
def test_top_p_boundary_token_stays(top_p: float, num_kept: int) -> None:
    """Ten equal tokens of 0.1 each: the set ends with the token that reaches top_p."""
    row = np.zeros(10, dtype=np.float32)
    assert survivors(row, SamplingParams(temperature=1, top_p=top_p)) == list(range(num_kept))


@pytest.mark.parametrize("gap", [5, 9, 13, 17])
def test_top_p_finds_mass_far_below_the_best_token(gap: int) -> None:
    """Most of the probability lies in a long tail, `gap` below the only likely token."""
    num_tail = round(3 * math.exp(gap)) if gap < 12 else 200_000
    row = np.full(1 + num_tail, -gap, dtype=np.float32)
    row[0] = 0
    share = math.exp(-gap)
    top_p = (1 + (num_tail // 2 + 0.5) * share) / (1 + num_tail * share)
    kept = survivors(row, SamplingParams(temperature=1, top_p=top_p))
    assert kept == list(range(num_tail // 2 + 2))


def test_top_p_counts_what_top_k_left() -> None:
    row = np.log(slow_sampling.rows([0.4, 0.3, 0.2, 0.1])[0])
    # Of all four tokens the first has 0.40, of the first two 0.57.
    assert survivors(row, SamplingParams(temperature=1, top_p=0.5)) == [0, 1]
    assert survivors(row, SamplingParams(temperature=1, top_p=0.5, top_k=2)) == [0]


def test_temperature_comes_before_top_p() -> None:
    row = np.log(slow_sampling.rows([0.6, 0.3, 0.1])[0])
    assert survivors(row, SamplingParams(temperature=1, top_p=0.55)) == [0]
    assert survivors(row, SamplingParams(temperature=2, top_p=0.55)) == [0, 1]


def test_min_p_is_relative_to_best_token() -> None:
    row = np.log(slow_sampling.rows([0.5, 0.26, 0.24])[0])
    assert survivors(row, SamplingParams(temperature=1, min_p=0.5)) == [0, 1]
    assert survivors(row, SamplingParams(temperature=1, min_p=1.0)) == [0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-300, top_p=0.9),
        SamplingParams(temperature=1e-300, min_p=0.9),
        SamplingParams(temperature=0.5, top_p=1e-9),
        SamplingParams(temperature=0.5, top_k=1),
    ],
)
def test_best_token_survives_the_strictest_filter(params: SamplingParams) -> None:
    row = slow_sampling.rows([-3, 7, 6.5, -math.inf, 2])[0]
    assert survivors(row, params) == [1]


def test_impossible_tokens_never_pass_top_p() -> None:
    row = slow_sampling.rows([0, -math.inf, 0, -math.inf])[0]
    assert survivors(row, SamplingParams(temperature=1, top_p=0.99)) == [0, 2]


@given(logit_rows, st.integers(0, 60))
def test_top_columns_are_head_of_ranking(logits: list[float], num_columns: int) -> None:
    ranking = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    row = np.array(logits, dtype=np.float32)
    assert top_columns(row, num_columns).tolist() == sorted(ranking[:num_columns])


@given(st.lists(fine, min_size=1), st.floats(-25, 25))
def test_cutoff_never_loses_a_column(logits: list[float], cutoff: float) -> None:
    found = at_least(np.array(logits, dtype=np.float32), cutoff)
    assert all(is_in for is_in, logit in zip(found, logits, strict=True) if logit >= cutoff)


def test_infinite_cutoff_takes_every_column() -> None:
    assert at_least(slow_sampling.rows([1, -math.inf])[0], -math.inf).all()


def test_scaling_at_tiny_temperature_overflows_quietly() -> None:
    scaled = scale(slow_sampling.rows([3, 2])[0], 3.0, 1e-310)
    assert scaled.tolist() == [0, -math.inf]
