"""Gain: what is measured of drafts, by kind of request."""

import pytest

from front_parts import request
from gain_world import simulate
from headlong.config import SamplingParams
from headlong.fleet import gain
from headlong.fleet.gain import Gains, kind_of

CODE, PROSE = kind_of(request(*range(10, 60))), kind_of(request(*range(60, 120)))


def measured(*answers: tuple[gain.Kind, float, bool]) -> Gains:
    """Return what is known after answers of 100 tokens: kind, seconds, with drafts or without."""
    gains = Gains()
    for kind, seconds, drafts in answers:
        gains.observe(kind, seconds, 100, drafts=drafts)
    return gains


def test_nothing_measured_lets_drafts_be_tried() -> None:
    for gains in (Gains(), measured((CODE, 1.0, True)), measured((CODE, 1.0, False))):
        seen = gains.forecast(CODE)
        assert not seen.is_measured
        assert seen.gain > 1


def test_gain_is_speed_with_drafts_against_without() -> None:
    seen = measured((CODE, 2.0, False), (CODE, 1.0, True)).forecast(CODE)
    assert (seen.plain_s, seen.draft_s) == pytest.approx((0.02, 0.01))
    assert seen.gain == pytest.approx(2)


def test_applications_gain_apart_as_they_are_learned() -> None:
    rounds = [(CODE, 1.0, False), (CODE, 0.5, True), (PROSE, 1.0, False), (PROSE, 2.0, True)]
    gains = measured(*rounds * 30)
    assert gains.forecast(CODE).gain > 1.5
    assert gains.forecast(PROSE).gain < 0.7


def test_new_application_begins_with_what_is_known_of_all() -> None:
    gains = measured((CODE, 1.0, False), (CODE, 0.5, True))
    assert gains.forecast(PROSE).gain == pytest.approx(2)
    sampled = kind_of(request(*range(10, 60), sampling=SamplingParams(temperature=1.0)))
    assert not gains.forecast(sampled).is_measured


def test_newest_answers_weigh_most() -> None:
    gains = measured(*[(CODE, 1.0, False), (CODE, 0.5, True)] * 50, *[(CODE, 3.0, True)] * 50)
    assert gains.forecast(CODE).gain < 0.5


def test_auto_comes_near_one_who_knows_each_answer() -> None:
    """Applications that gain go to drafts, those that lose do not, and a change is noticed."""
    steady = simulate(1, 1500, scatter=0.3)
    assert steady.best_s / steady.auto_s > 0.96
    assert steady.best_s / min(steady.plain_s, steady.drafts_s) < 0.88
    changed = simulate(1, 1500, scatter=0.3, changes=True)
    assert changed.best_s / changed.auto_s > 0.94
    assert sum(changed.wrong[-200:]) < 30


def test_table_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "MAX_KINDS", 10)
    gains = measured((CODE, 9.0, False), (CODE, 9.0, True))
    for number in range(50):
        gains.observe(kind_of(request(number)), 1.0, 100, drafts=bool(number % 2))
    assert len(gains._paces) == 10
    assert CODE not in gains._paces
