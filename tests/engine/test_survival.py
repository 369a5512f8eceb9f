"""Survival: chances per depth, begun from what others have shown; calibrated confidence."""

import math
import random

import pytest

from headlong.drafters.draft_plan import Threshold
from headlong.engine.survival import MAX_AUTO_TOKENS, OPTIMISM, CalibrationCounts, Survival


def observed(num_times: int, asked: int, drafted: int, accepted: int) -> Survival:
    """Return what is known after so many equal drafts."""
    survival = Survival()
    for _ in range(num_times):
        survival.observe(asked, drafted, accepted, 0.98)
    return survival


def test_expected_tokens_follow_what_stood() -> None:
    found = observed(500, 2, 2, 1).expect(Survival())
    assert found.tokens[0] == pytest.approx(1.0, abs=0.05)
    assert found.tokens[1] == pytest.approx(0.0, abs=0.1), "depth 2 is never accepted"
    assert found.rows[1] == pytest.approx(1.0, abs=0.05), "but it was always there"


def test_short_drafts_cost_no_rows() -> None:
    found = observed(500, 6, 1, 1).expect(Survival())
    assert sum(found.rows[:6]) == pytest.approx(1.0, abs=0.35), "of the six that were asked for"


def test_new_requests_begin_with_what_others_have_shown() -> None:
    shared = observed(300, 4, 4, 0)
    assert Survival().expect(shared).tokens[0] < 0.1
    assert Survival().expect(Survival()).tokens[0] == pytest.approx(0.7)


def test_own_observations_outweigh_others_soon() -> None:
    found = observed(20, 4, 4, 4).expect(observed(300, 4, 4, 0))
    assert found.tokens[0] > 0.7
    # A depth that was never drafted is judged by how well the depths before it did.
    assert found.tokens[4] / found.tokens[3] > 0.5


def test_amounts_never_rise_with_depth() -> None:
    rng = random.Random(3)
    own = Survival()
    for _ in range(200):
        asked = rng.randint(1, MAX_AUTO_TOKENS)
        drafted = rng.randint(0, asked)
        own.observe(asked, drafted, rng.randint(0, drafted), 0.98)
    for amounts in own.expect(Survival()):
        assert list(amounts) == sorted(amounts, reverse=True)


def test_a_short_memory_makes_room_for_new_observations() -> None:
    own = observed(100, 2, 2, 0)
    for _ in range(4):
        own.observe(2, 2, 2, 0.3)
    assert own.expect(Survival()).tokens[0] > 0.5


def test_unknown_probabilities_are_given_some_chance() -> None:
    """What is never drafted shows nothing."""
    unknown = CalibrationCounts().read()
    assert unknown(0.001) == pytest.approx(1 - OPTIMISM, abs=0.05)
    assert unknown(0.55) == pytest.approx(0.6, abs=0.1)
    assert unknown(0.99) > 0.95


def test_boasts_and_modesty_are_corrected() -> None:
    rng = random.Random(4)
    boaster, modest = CalibrationCounts(), CalibrationCounts()
    for _ in range(4000):
        prob = rng.random()
        boaster.observe([prob], int(rng.random() < prob**2))
        modest.observe([prob], int(rng.random() < prob**0.5))
    assert boaster.read()(0.55) == pytest.approx(0.3, abs=0.08)
    assert modest.read()(0.25) == pytest.approx(0.5, abs=0.08)
    assert boaster.mean == pytest.approx(1 / 3, abs=0.05)
    assert modest.mean == pytest.approx(2 / 3, abs=0.05)


def test_token_behind_a_refused_one_shows_nothing() -> None:
    counts = CalibrationCounts()
    for _ in range(500):
        counts.observe([0.95, 0.55, 0.85], 1)
    learned = counts.read()
    assert learned(0.95) > 0.9
    assert learned(0.55) < 0.1, "it was reached, and refused"
    assert learned(0.85) > 0.5, "it was never reached"


def test_shared_noise_makes_unlikely_tokens_stand() -> None:
    """At a temperature the chance of a token hardly falls with its probability."""
    rng = random.Random(5)
    counts = CalibrationCounts()
    for _ in range(4000):
        prob = rng.random() ** 2
        counts.observe([prob], int(rng.random() < 0.27 + 0.6 * prob))
    learned = counts.read()
    assert learned(0.02) == pytest.approx(0.28, abs=0.06)
    assert Threshold(0.2, 0.0, learned).count_kept([0.02]) == 1
    assert Threshold(0.2, 0.0, learned).count_kept([0.02, 0.02]) == 1, (
        "both together are too unlikely"
    )


def test_a_chance_that_is_no_number_ends_a_draft() -> None:
    assert Threshold(0.2, 0.0).count_kept([0.9, math.nan, 0.9]) == 1
