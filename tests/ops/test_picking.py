"""Compiled picking against the numpy definitions."""

from typing import Any

import numpy as np
import pytest

from headlong.config import SamplingParams
from headlong.decode.sampling import Sampler, pick_rule
from headlong.errors import CheckpointError
from headlong.ops.filters import relative_probs, surviving_columns
from headlong.ops.gumbel_argmax import LogitsRow, gumbel_argmax
from headlong.ops.host_ops import PickRule
from headlong.ops.native.host import NativeHost
from headlong.ops.numpy.host import NumpyHost
from native_parts import random

NATIVE = NativeHost()


@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("temperature", [1e-300, 0.05, 0.8, 10.0])
@pytest.mark.parametrize("has_ids", [False, True])
def test_gumbel_argmax_follows_the_definition(
    spread: float, temperature: float, has_ids: bool
) -> None:
    rng = np.random.default_rng(1)
    for size in (1, 5, 1025, 20_000):
        logits = random(size, size) * np.float32(spread)
        ids = np.sort(rng.choice(200_000, size, replace=False)) if has_ids else None
        field = LogitsRow(logits, ids, float(logits.max()), temperature)
        for key in rng.integers(0, 2**63, 20).tolist():
            winner = NATIVE.gumbel_argmax(logits, ids, field.best, temperature, key)
            assert winner == gumbel_argmax(field, key)


def test_equal_scores_go_to_the_lowest_column() -> None:
    logits = np.zeros(3000, dtype=np.float32)
    ids = np.full(3000, 7)  # the same noise for all
    assert NATIVE.gumbel_argmax(logits, ids, 0.0, 1.0, 5) == 0


FILTERS: tuple[dict[str, Any], ...] = (
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 900},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.1},
)


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("temperature", [1e-300, 0.05, 0.7, 2.0])
@pytest.mark.parametrize("looks", ["smooth", "tied", "full of holes"])
def test_filters_leave_what_the_definition_leaves(
    spread: float, temperature: float, looks: str
) -> None:
    for size in (1, 3, 64, 65, 1000, 20_000):
        logits = random(size, size) * np.float32(spread)
        if looks == "tied":
            logits = np.round(logits * 4) / np.float32(4)
        if looks == "full of holes":
            logits[1::3] = -np.inf
        best = float(logits.max())
        for filters in FILTERS:
            rule = pick_rule(SamplingParams(temperature=temperature, **filters))
            if not rule.filters(size):
                continue
            expected = surviving_columns(logits, best, rule)
            columns = NATIVE.surviving_columns(logits, best, rule)
            assert np.array_equal(columns, expected), (size, filters)


@pytest.mark.parametrize("temperature", [1e-5, 0.01, 0.7, 1.0, 50.0])
def test_total_probability_is_good_to_six_digits(temperature: float) -> None:
    logits = random(2, 16_385) * np.float32(5)
    best = float(logits.max())
    expected = relative_probs(logits, best, temperature).sum()
    assert NATIVE.sum_relative(logits, best, temperature) == pytest.approx(expected, rel=1e-5)


def test_malformed_rows_are_refused() -> None:
    logits = random(3, 10)
    with pytest.raises(ValueError, match="differ in number"):
        NATIVE.gumbel_argmax(logits, np.arange(9), 0.0, 1.0, 1)
    with pytest.raises(ValueError, match="finite"):
        NATIVE.gumbel_argmax(logits, None, float("nan"), 1.0, 1)
    with pytest.raises(ValueError, match="no logits"):
        NATIVE.gumbel_argmax(logits[:0], None, 0.0, 1.0, 1)
    with pytest.raises(ValueError, match="above 0"):
        NATIVE.surviving_columns(logits, 0.0, PickRule(0.0, 1, 1.0, 0.0, 1))
    with pytest.raises(ValueError, match="out of range"):
        NATIVE.surviving_columns(logits, 0.0, PickRule(1.0, -1, 1.0, 0.0, 1))
    for rule in (PickRule(1.0, 0, 1.0, 1.5, 1), PickRule(1.0, 0, 1.5, 0.0, 1)):
        with pytest.raises(ValueError, match="out of range"):
            NATIVE.surviving_columns(logits, 0.0, rule)


def test_rows_with_nan_are_refused() -> None:
    """They once led top-k out of its array."""
    logits = np.full(5000, np.nan, dtype=np.float32)
    logits[3] = 1.0
    with pytest.raises(ValueError, match="not a number"):
        NATIVE.surviving_columns(logits, 1.0, PickRule(1.0, 40, 1.0, 0.0, 1))


@pytest.mark.parametrize("filters", [{}, *FILTERS])
@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.7, 2.0])
def test_picks_at_once_are_picks_in_steps(filters: dict[str, Any], temperature: float) -> None:
    """Guards a token that depends on whether a penalty or a grammar made us go step by step."""
    for size in (1, 65, 3000, 49_152):
        logits = random(size, size) * np.float32(4)
        for seed in (0, 7, 2**64 - 1):
            params = SamplingParams(temperature=temperature, seed=seed, **filters)
            for host in (NATIVE, NumpyHost()):
                sampler = Sampler(params, [1, 2, 3], size, host=host)
                assert sampler.pick(logits).token_id == sampler._pick_in_steps(logits)


def test_coldest_pick_is_the_first_of_the_largest() -> None:
    for size in (1, 15, 17, 256, 257, 1000, 49_152):
        for seed in range(5):
            logits = np.round(random(seed, size) * 2)  # many are equal
            picked = (
                Sampler(SamplingParams(temperature=0.0), [1], size, host=NATIVE)
                .pick(logits)
                .token_id
            )
            assert picked == int(logits.argmax())
        logits[:] = -np.inf
        logits[-1] = 1.0
        assert (
            Sampler(SamplingParams(temperature=0.0), [1], size, host=NATIVE).pick(logits).token_id
            == size - 1
        )


@pytest.mark.parametrize("place", [0, 40, 99, 300])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_named(broken: float, temperature: float, place: int) -> None:
    logits = random(3, 301)
    logits[place] = broken
    sampler = Sampler(SamplingParams(temperature=temperature), [1], 301, host=NATIVE)
    with pytest.raises(CheckpointError, match="at position 1"):
        sampler.pick(logits)
