"""The noise is a fixed function: same numbers everywhere, evenly spread, and nothing repeats."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from headlong.ops.noise import (
    MAX_GUMBEL,
    MIN_GUMBEL,
    bits_reaching,
    gumbel,
    gumbel_of,
    noise_bits,
    noise_key,
)

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def bits_of(seed: int, position: int, token_id: int) -> int:
    key = noise_key(seed, position)
    return int(noise_bits(key, np.array([token_id]))[0])


def test_mixer_is_the_published_splitmix64() -> None:
    """Guards the recipe's constants: 0xE220… is splitmix64's first output for seed 0."""
    assert mix(GOLDEN) == 0xE220A8397B1DCDAF


@given(st.integers(0, WORD), st.integers(0, 2**40), st.integers(0, 2**31))
def test_bits_follow_the_documented_recipe(seed: int, position: int, token_id: int) -> None:
    key = mix(mix(seed + GOLDEN & WORD) + GOLDEN * (position + 1) & WORD)
    assert bits_of(seed, position, token_id) == mix(key + GOLDEN * (token_id + 1) & WORD)


@pytest.mark.parametrize(
    ("seed", "position", "token_id", "bits", "noise"),
    [
        (0, 0, 0, 0x238275BC38FCBE91, -0.6807578025137786),
        (1, 0, 0, 0xB18A02F46D8D86C3, 1.0051587347812545),
        (0, 1, 0, 0x2F101FE21496EA20, -0.526909935923932),
        (0, 0, 1, 0xF89A2566B5822C54, 3.5293597414235305),
        (42, 1000, 49151, 0x2D2B09A18C2B1DE9, -0.5508840693338793),
        (WORD, 131071, 250000, 0x0F027D11C62FBDB9, -1.0425636327275491),
    ],
)
def test_known_values_never_change(
    seed: int, position: int, token_id: int, bits: int, noise: float
) -> None:
    assert bits_of(seed, position, token_id) == bits
    assert gumbel(seed, position, np.array([token_id]))[0] == pytest.approx(noise, rel=1e-14)


def test_noise_of_a_token_ignores_its_neighbours() -> None:
    many = gumbel(7, 8, np.arange(5000))
    few = gumbel(7, 8, np.array([4999, 3, 17]))
    assert few.tolist() == many[[4999, 3, 17]].tolist()


def test_smallest_and_largest_bits_give_finite_noise() -> None:
    """Guards the 53-bit variant of the recipe, whose largest value rounds to infinite noise."""
    extremes = gumbel_of(np.array([0, WORD], dtype=np.uint64))
    assert extremes.tolist() == pytest.approx([MIN_GUMBEL, MAX_GUMBEL], rel=1e-12)


@given(st.integers(0, WORD), st.floats(-10, 50))
def test_bits_below_the_threshold_have_less_noise(bits: int, noise: float) -> None:
    threshold = bits_reaching(noise)
    has = float(gumbel_of(np.array([bits], dtype=np.uint64))[0])
    assert bits >= threshold or has < noise


@given(st.integers(0, 2**20))
def test_threshold_holds_among_the_largest_bits(steps_below_top: int) -> None:
    bits = WORD - (steps_below_top << 12)
    noise = float(gumbel_of(np.array([bits], dtype=np.uint64))[0])
    assert bits >= bits_reaching(noise)


def test_threshold_dismisses_nearly_all_tokens() -> None:
    bits = noise_bits(noise_key(1, 2), np.arange(100_000))
    share = float(np.mean(bits >= bits_reaching(5.0)))
    assert share == pytest.approx(1 - np.exp(-np.exp(-5.0)), rel=0.1)


def uniforms(seeds: range, positions: range, token_ids: range) -> NDArray[np.float64]:
    ids = np.arange(token_ids.start, token_ids.stop)
    grid = [gumbel(s, p, ids) for s, p in itertools.product(seeds, positions)]
    return np.exp(-np.exp(-np.array(grid))).ravel()


@pytest.mark.parametrize(
    ("seeds", "positions", "token_ids"),
    [
        (range(1), range(1), range(50_000)),
        (range(1), range(5_000), range(10)),
        (range(5_000), range(1), range(10)),
    ],
    ids=["over token ids", "over positions", "over seeds"],
)
def test_noise_is_gumbel_distributed(seeds: range, positions: range, token_ids: range) -> None:
    sample = uniforms(seeds, positions, token_ids)
    assert stats.kstest(sample, "uniform").pvalue > 1e-3
    counts, _ = np.histogram(sample, bins=100, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seeds", "positions", "token ids"])
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_neighbours_are_independent(axis: int, lag: int) -> None:
    ids = np.arange(40)
    grid = np.array([[gumbel(s, p, ids) for p in range(40)] for s in range(40)])  # (s, p, id)
    binned = np.digitize(np.exp(-np.exp(-grid)), np.linspace(0, 1, 9)[1:-1])
    binned = np.moveaxis(binned, axis, 0)
    pairs = np.zeros((8, 8))
    np.add.at(pairs, (binned[:-lag].ravel(), binned[lag:].ravel()), 1)
    assert stats.chi2_contingency(pairs).pvalue > 1e-3


@pytest.mark.parametrize("argument", [0, 1, 2], ids=["seed", "position", "token id"])
def test_one_changed_bit_changes_half_of_the_hash(argument: int) -> None:
    flipped = []
    for start, bit in itertools.product(range(40), range(20)):
        arguments = [start * 977, start * 31, start * 131]
        before = bits_of(*arguments)
        arguments[argument] ^= 1 << bit
        flipped.append((before ^ bits_of(*arguments)).bit_count())
    assert np.mean(flipped) == pytest.approx(32, abs=0.6)
    assert min(flipped) > 12
