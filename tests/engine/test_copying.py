"""Copies of sequences at rest: made where they pay, learned from, and never a change of text."""

import pytest

from headlong.drafters.drafter import NGRAM, Draft
from headlong.engine.chances import COPY_MEMORY, Copies, CopyCounts, Expected
from headlong.engine.copying import copy_bars, learn_copy
from headlong.engine.costs import CostModel
from headlong.engine.load import Load, prospect_of
from headlong.engine.planner import Planner
from policy_world import World, play


def crowded_pass(num_rows: int) -> float:
    """Eight rows take 6.4 ms, and every further one 0.6: a copy must stand three times of four."""
    return 0.0016 + 0.0006 * num_rows


def crowd(match_share: float, match_chance: float) -> World:
    """A world in which a head is of no use, and some texts repeat themselves."""
    return World(
        crowded_pass,
        chance=lambda rng, time: 0.1,
        match_share=match_share,
        match_chance=match_chance,
    )


def gain(world: World) -> float:
    """Return tokens per second of eight "auto" streams, against eight plain ones."""
    planner = Planner()
    play(world, "auto", 300, 8, planner)
    auto = play(world, "auto", 2000, 8, planner)
    return auto.tokens_per_second / play(world, "off", 100, 8).tokens_per_second


def test_copies_that_stand_make_eight_streams_quicker() -> None:
    # Of 100 rounds 30 copy: 0.3 * 0.95 tokens more, for 0.3 * 0.6 ms of 0.8.
    assert gain(crowd(0.3, 0.95)) == pytest.approx(1.285 / 1.225, abs=0.01)


@pytest.mark.parametrize("match_chance", [0.3, 0.5, 0.65])
def test_copies_that_fall_are_soon_left(match_chance: float) -> None:
    assert gain(crowd(0.3, match_chance)) >= 0.993


def test_what_copies_give_is_no_merit_of_drafts() -> None:
    """Guards a head that seems to gain what copies would have given without it."""
    planner = Planner()
    world = World(crowded_pass, chance=lambda rng, time: 0.1, match_share=0.3, match_chance=0.95)
    play(world, "auto", 600, 8, planner)
    policy = planner.make_policy("auto", 0.0)
    planner.plan([policy, *(planner.make_policy("auto", 0.0) for _ in range(7))], max_rows=64)
    copies = policy.expected().copies
    assert copies.rows == pytest.approx(0.3, abs=0.05)
    assert copies.tokens == pytest.approx(0.3 * 0.95, abs=0.05)
    rested = planner._rest
    assert rested is not None
    assert rested.load.tokens == pytest.approx(8 * (1 + copies.tokens), abs=0.1)


def test_bars_are_those_of_like_requests() -> None:
    planner = Planner()
    cold, warm = planner.make_policy("auto", 0.0), planner.make_policy("auto", 0.7)
    for _ in range(200):
        learn_copy(cold, Draft((1,), (0.75,), (NGRAM,)), 1)
        learn_copy(warm, Draft((1,), (0.75,), (NGRAM,)), 0)
    bars = copy_bars([cold, warm, cold], 0.7)
    assert len(bars) == 2
    assert bars[id(cold.experience)][NGRAM].chance(0.75) > 0.9
    assert bars[id(warm.experience)][NGRAM].chance(0.75) < 0.1
    assert {own[NGRAM].keep for own in bars.values()} == {0.7}


def test_what_was_copied_long_ago_is_forgotten() -> None:
    counts = CopyCounts()
    assert counts.read() == Copies(0.0, 0.0)
    counts.num_rounds = counts.num_rows = counts.num_stood = 2.0 * COPY_MEMORY
    for _ in range(6):
        counts.num_rounds += COPY_MEMORY
        seen = counts.read()
    assert seen.rows < 0.1


def test_promise_counts_all_tokens_of_a_round() -> None:
    """Guards telling less of drafts where copies were made before."""
    expected = Expected((0.0,) * 8, (1.0,) * 8, (0.5,) + (0.0,) * 7, Copies(0.2, 0.1))
    costs = CostModel()
    for num_rows in (1, 2, 3):
        costs.observe_pass(num_rows, 0.001 * (9 + num_rows))
    load = Load(1, rows=1.2, tokens=1.1)
    seen = prospect_of(expected, 1, load.drafting([expected], [1]), costs)
    assert seen.expected_tokens == pytest.approx(1.5)
