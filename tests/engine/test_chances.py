"""Chances: per depth and sequence, begun from what others have shown; confidence made honest."""

import math
import random

import pytest

from headlong.drafters.draft_plan import Threshold
from headlong.engine.chances import (
    HOPE,
    MAX_AUTO_TOKENS,
    OWN_MEMORY,
    SHARED_MEMORY,
    Confidence,
    Look,
    expect,
    make_ladders,
    priors_from,
)


def test_expected_tokens_follow_what_stood() -> None:
    own, priors = make_ladders(OWN_MEMORY), priors_from(make_ladders(SHARED_MEMORY))
    for _ in range(500):
        own.observe(Look(num_asked=2, num_steps=2, num_drafted=2, num_accepted=1))
    found = expect(own, priors)
    assert found.tokens[0] == pytest.approx(1.0, abs=0.05)
    assert found.tokens[1] == pytest.approx(0.0, abs=0.1), "depth 2 never stood"
    assert found.rows[1] == pytest.approx(1.0, abs=0.05), "but it was always there"


def test_short_drafts_cost_no_rows() -> None:
    own, priors = make_ladders(OWN_MEMORY), priors_from(make_ladders(SHARED_MEMORY))
    for _ in range(500):
        own.observe(Look(num_asked=6, num_steps=2, num_drafted=1, num_accepted=1))
    found = expect(own, priors)
    assert sum(found.rows) == pytest.approx(1.0, abs=0.35)
    assert sum(found.steps) == pytest.approx(2.0, abs=0.35)


def test_new_sequences_begin_with_what_others_have_shown() -> None:
    shared = make_ladders(SHARED_MEMORY)
    for _ in range(300):
        shared.observe(Look(4, 4, 4, 0))
    fresh = make_ladders(OWN_MEMORY)
    assert expect(fresh, priors_from(shared)).tokens[0] < 0.1
    assert expect(fresh, priors_from(make_ladders(SHARED_MEMORY))).tokens[0] == pytest.approx(0.7)


def test_own_experience_outweighs_others_soon() -> None:
    shared, own = make_ladders(SHARED_MEMORY), make_ladders(OWN_MEMORY)
    for _ in range(300):
        shared.observe(Look(4, 4, 4, 0))
    for _ in range(20):
        own.observe(Look(4, 4, 4, 4))
    found = expect(own, priors_from(shared))
    assert found.tokens[0] > 0.7
    # What nobody has tried is judged by how well the depths before it did.
    assert found.tokens[4] / found.tokens[3] > 0.5


def test_amounts_never_rise_with_depth() -> None:
    rng = random.Random(3)
    own, priors = make_ladders(OWN_MEMORY), priors_from(make_ladders(SHARED_MEMORY))
    for _ in range(200):
        asked = rng.randint(1, MAX_AUTO_TOKENS)
        drafted = rng.randint(0, asked)
        own.observe(Look(asked, drafted, drafted, rng.randint(0, drafted)))
    found = expect(own, priors)
    for amounts in (found.steps, found.rows, found.tokens):
        assert list(amounts) == sorted(amounts, reverse=True)


def test_fading_makes_room_for_new_looks() -> None:
    own, priors = make_ladders(OWN_MEMORY), priors_from(make_ladders(SHARED_MEMORY))
    for _ in range(100):
        own.observe(Look(2, 2, 2, 0))
    own.fade(0.1)
    for _ in range(4):
        own.observe(Look(2, 2, 2, 2))
    assert expect(own, priors).tokens[0] > 0.5


def test_untested_confidence_is_given_some_hope() -> None:
    """Who is never tried cannot show what it is worth."""
    untested = Confidence().read()
    assert untested(0.001) == pytest.approx(HOPE, abs=0.05)
    assert untested(0.55) == pytest.approx(HOPE + (1 - HOPE) * 0.55, abs=0.05)
    assert untested(0.99) > 0.95


def test_boasts_and_modest_words_are_taken_for_what_they_are_worth() -> None:
    rng = random.Random(4)
    boaster, modest = Confidence(), Confidence()
    for _ in range(4000):
        prob = rng.random()
        boaster.observe([prob], int(rng.random() < prob**2))
        modest.observe([prob], int(rng.random() < prob**0.5))
    assert boaster.read()(0.55) == pytest.approx(0.3, abs=0.08)
    assert modest.read()(0.25) == pytest.approx(0.5, abs=0.08)
    assert boaster.share == pytest.approx(1 / 3, abs=0.05)
    assert modest.share == pytest.approx(2 / 3, abs=0.05)


def test_token_behind_a_refused_one_shows_nothing() -> None:
    confidence = Confidence()
    for _ in range(500):
        confidence.observe([0.95, 0.55, 0.85], 1)
    learned = confidence.read()
    assert learned(0.95) > 0.9
    assert learned(0.55) < 0.1, "it was reached, and refused"
    assert learned(0.85) > 0.5, "it was never reached"


def test_shared_noise_makes_unlikely_tokens_stand() -> None:
    """At a temperature the chance of a token hardly falls with its probability."""
    rng = random.Random(5)
    confidence = Confidence()
    for _ in range(4000):
        prob = rng.random() ** 2
        confidence.observe([prob], int(rng.random() < 0.27 + 0.6 * prob))
    learned = confidence.read()
    assert learned(0.02) == pytest.approx(0.28, abs=0.06)
    assert Threshold(0.2, 0.0, learned).count_kept([0.02]) == 1
    assert Threshold(0.2, 0.0, learned).count_kept([0.02, 0.02]) == 1, (
        "both together are too unlikely"
    )


def test_a_chance_that_is_no_number_ends_a_draft() -> None:
    assert Threshold(0.2, 0.0).count_kept([0.9, math.nan, 0.9]) == 1
