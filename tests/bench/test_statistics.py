"""Speed-ups and their intervals: exact where they can be, covering as often as they say."""

import math

import numpy as np
import pytest
from scipy import stats

from headlong.bench import statistics
from headlong.bench.statistics import Pair, Totals, paired_speedup, percentile, t_quantile


def pair(plain_s: float, drafted_s: float, num_tokens: int = 10) -> Pair:
    return Totals(num_tokens, plain_s), Totals(num_tokens, drafted_s)


def test_speedup_is_the_ratio_of_total_tokens_per_second() -> None:
    """Not the mean of ratios: a long answer counts for more."""
    found = paired_speedup([[pair(1.0, 0.5, 10), pair(9.0, 9.0, 90)]])
    assert found is not None
    assert found.value == pytest.approx(10.0 / 9.5)
    assert found.num_prompts == 2


def test_counts_may_differ_between_sides() -> None:
    found = paired_speedup([[(Totals(100, 10.0), Totals(60, 3.0))] * 4])
    assert found is not None
    assert found.value == pytest.approx(2.0)


def test_prompts_that_agree_leave_no_doubt() -> None:
    found = paired_speedup([[pair(2.0, 1.0), pair(4.0, 2.0), pair(1.0, 0.5)]])
    assert found is not None
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_one_prompt_has_no_interval() -> None:
    found = paired_speedup([[pair(2.0, 1.0)]])
    assert found is not None
    assert (found.value, found.low, found.high) == (2.0, None, None)


def test_no_prompt_has_no_speedup() -> None:
    assert paired_speedup([]) is None


def test_tasks_of_one_prompt_each_are_spread_together() -> None:
    together = paired_speedup([[pair(2.0, 1.0), pair(2.0, 1.6), pair(2.0, 0.8)]])
    alone = paired_speedup([[pair(2.0, 1.0)], [pair(2.0, 1.6)], [pair(2.0, 0.8)]])
    assert alone == together


def test_differences_between_tasks_do_not_widen_the_interval() -> None:
    """Stratified: how much code gains over chat is not chance, it is the mix of prompts."""
    code, chat = [pair(3.0, 1.0)] * 5, [pair(1.0, 1.0)] * 5
    stratified, mixed = paired_speedup([code, chat]), paired_speedup([code + chat])
    assert stratified is not None
    assert mixed is not None
    assert stratified.low == pytest.approx(stratified.high)
    assert mixed.low is not None
    assert mixed.high is not None
    assert mixed.high / mixed.low > 1.3


def test_same_seed_gives_the_same_interval() -> None:
    pairs = [pair(1.0, seconds) for seconds in (0.5, 0.7, 0.9, 0.6)]
    assert paired_speedup([pairs]) == paired_speedup([pairs])


def test_swapping_the_sides_inverts_the_speedup() -> None:
    pairs = [pair(1.0, seconds) for seconds in (0.5, 0.7, 0.9, 0.6)]
    there = paired_speedup([pairs])
    back = paired_speedup([[(b, a) for a, b in pairs]])
    assert there is not None
    assert back is not None
    assert there.low is not None
    assert back.high is not None
    assert back.value == pytest.approx(1 / there.value)
    assert back.high == pytest.approx(1 / there.low)


@pytest.mark.parametrize("df", [1, 2, 3, 4.5, 7, 12, 25, 45, 500])
def test_t_quantiles_are_those_of_scipy(df: float) -> None:
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.975, df), rel=0.01)


def test_percentiles_are_straight_between_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([0.0, 10.0], 95) == pytest.approx(9.5)


def draw(rng: np.random.Generator, num_prompts: int, gain: float) -> list[Pair]:
    """Draw prompts whose logarithmic speed-ups scatter by 0.2 around `gain`."""
    pairs = []
    for _ in range(num_prompts):
        num_tokens = int(rng.integers(20, 129))
        seconds = num_tokens * 0.003 * math.exp(rng.normal(0, 0.05))
        pairs.append(pair(seconds, seconds / math.exp(rng.normal(gain, 0.2)), num_tokens))
    return pairs


@pytest.mark.parametrize("sizes", [(4,), (12,), (4, 4, 4), (6,) * 9])
def test_intervals_cover_the_truth_as_often_as_stated(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "NUM_RESAMPLES", 500)
    rng = np.random.default_rng(7)
    gains = [0.1 + 0.1 * stratum for stratum in range(len(sizes))]
    # The truth: what the same mix of tasks gives with very many prompts.
    plain = sum(sizes)
    drafted = sum(n * math.exp(-gain + 0.2**2 / 2) for n, gain in zip(sizes, gains, strict=True))
    truth, num_trials, hits = plain / drafted, 500, 0
    for trial in range(num_trials):
        strata = [draw(rng, n, gain) for n, gain in zip(sizes, gains, strict=True)]
        found = paired_speedup(strata, seed=trial)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth <= found.high
    # Two standard errors of 500 trials are 0.02; small samples are allowed a little more.
    assert 0.915 <= hits / num_trials <= 0.985
