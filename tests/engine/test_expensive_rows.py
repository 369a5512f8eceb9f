"""Long drafts of copies end at the last row of a tile if the next row is expensive."""

import random
from collections import Counter

import pytest

from headlong.engine.survival import MAX_AUTO_TOKENS
from policy_world import World, play

NUM_ROUNDS = 800


TILES = (
    *(1.0, 1.0, 1.01, 1.01, 1.08, 1.16, 1.3, 1.44, 1.89, 1.99, 2.08, 2.18, 2.33, 2.48, 2.63, 2.79),
    *(3.13, 3.28),
)
"""Passes of a 1.5B model over 1, 2, … rows on one busy core, as measured: a ninth opens a tile."""


def tiled_pass(num_rows: int) -> float:
    """That curve."""
    return 0.030 * TILES[num_rows - 1]


def flat_pass(num_rows: int) -> float:
    """A machine with more arithmetic than it can feed: a row costs one hundredth of a pass."""
    return 0.030 * (1 + 0.01 * (num_rows - 1))


def copying(rng: random.Random, time: int) -> float:
    """Four rounds of five go on with a copy, the others find none."""
    return 0.93 if time % 5 else 0.0


def sure(chance: float) -> float:
    """What a drafter says that copies: nothing where it found none, else always the same."""
    return 0.9 if chance else 0.0


def copies(pass_s: object) -> World:
    """Return a world in which drafts cost nothing beside their rows."""
    assert callable(pass_s)
    return World(
        pass_s, step_s=1e-6, shared_step_s=0.0, chance=copying, says=sure, noise=0.03, ask_s=1e-5
    )


@pytest.mark.parametrize("seed", range(3))
def test_drafts_end_where_the_next_row_is_expensive(seed: int) -> None:
    """Guards the cost of the mean number of rows, by which a ninth row looked cheap."""
    world = copies(tiled_pass)
    rates = [play(world, k, NUM_ROUNDS, seed=seed).tokens_per_second for k in (5, 6, 7, 8, 16)]
    auto = play(world, "auto", NUM_ROUNDS, seed=seed)
    assert auto.tokens_per_second >= max(rates), "a fixed K also drafts where there is no copy"
    asked = Counter(auto.lengths)
    assert asked[7] > 0.8 * NUM_ROUNDS
    assert asked[8] < 0.1 * NUM_ROUNDS


def test_cost_of_an_expensive_row_stays_known() -> None:
    asked = [
        length
        for seed in (1, 2)
        for length in play(copies(tiled_pass), "auto", NUM_ROUNDS, seed=seed).lengths
    ]
    assert asked.count(8) >= 20


def test_copies_are_as_long_as_rows_are_cheap() -> None:
    world = copies(flat_pass)
    auto = play(world, "auto", NUM_ROUNDS)
    assert auto.lengths[-1] == MAX_AUTO_TOKENS == 16
    before = play(world, 8, NUM_ROUNDS).tokens_per_second
    assert auto.tokens_per_second > 1.25 * before
