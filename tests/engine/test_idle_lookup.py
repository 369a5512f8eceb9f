"""Idle requests draft single tokens by n-gram lookup: where that pays, and learned from."""

import pytest

from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import NGRAM, Draft
from headlong.engine.draft_policy import DraftPolicy
from policy_world import World, play

LOOKUP = DraftPlan(1, is_idle=True, only_lookup=True)


def crowded_pass(num_rows: int) -> float:
    """Eight rows take 6.4 ms, each further one 0.6: a lookup must stand three times of four."""
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
    policy = DraftPolicy()
    play(world, "auto", 300, 8, policy)
    auto = play(world, "auto", 2000, 8, policy)
    return auto.tokens_per_second / play(world, "off", 100, 8).tokens_per_second


def test_lookups_that_stand_make_eight_streams_quicker() -> None:
    # Of 100 rounds 30 look up: 0.3 * 0.95 tokens more, for 0.3 * 0.6 ms of 0.8.
    assert gain(crowd(0.3, 0.95)) == pytest.approx(1.285 / 1.225, abs=0.01)


@pytest.mark.parametrize("match_chance", [0.3, 0.5, 0.65])
def test_lookups_that_fall_are_soon_left(match_chance: float) -> None:
    assert gain(crowd(0.3, match_chance)) >= 0.993


def test_calibrations_are_those_of_like_requests() -> None:
    policy = DraftPolicy()
    cold, warm = policy.new_request("auto", 0.0), policy.new_request("auto", 0.7)
    for _ in range(200):
        cold.observe(LOOKUP, Draft((1,), (0.75,), (NGRAM,)), 1)
        warm.observe(LOOKUP, Draft((1,), (0.75,), (NGRAM,)), 0)
    assert cold.shared.calibrations[NGRAM].read()(0.75) > 0.9
    assert warm.shared.calibrations[NGRAM].read()(0.75) < 0.1
    assert policy.new_request("auto", 0.0).shared.thresholds(0.7, 0.7)[NGRAM].keep == 0.7


def test_lookups_in_one_text_keep_no_other_from_drafting() -> None:
    """Guards a text that repeats itself, and made being idle seem good for all after it."""
    policy = DraftPolicy()
    looping = World(lone_pass, chance=lambda rng, time: 0.05, match_share=0.6, match_chance=0.95)
    play(looping, "auto", 400, 1, policy)
    fair = play(World(lone_pass, chance=lambda rng, time: 0.5), "auto", 100, 1, policy)
    assert sum(length > 0 for length in fair.lengths) >= 75


def lone_pass(num_rows: int) -> float:
    """Rows cost little beside the first one."""
    return 0.003 + 0.0002 * num_rows
