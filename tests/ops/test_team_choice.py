"""When one thread works alone: where it is faster, never for nothing, and never back and forth."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from headlong.ops._native import TeamChoice

RUN_S = 0.004
"""Useful time of a run; how long it takes depends on how much of the cores there is."""

Rate = Callable[[float], float]


def play(team: Rate, alone: Rate, seconds: float, noise: float = 0.0) -> list[tuple[float, bool]]:
    """Make runs for so long; return when each began, and whether one thread made it alone.

    `team` and `alone` are useful seconds per second at some time; noise is a standard deviation.
    """
    choice, rng, now, runs = TeamChoice(), random.Random(3), 0.0, []
    while now < seconds:
        runs.append((now, choice.is_alone))
        rate = (alone if choice.is_alone else team)(now)
        took_s = RUN_S / max(0.05, rate * (1 + rng.gauss(0.0, noise)))
        now += took_s
        choice.settle(now, took_s, RUN_S)
    return runs


def num_switches(runs: list[tuple[float, bool]]) -> int:
    return sum(one[1] != other[1] for one, other in pairwise(runs))


@pytest.mark.parametrize("rate", [1.0, 1.4, 1.95])
def test_a_team_that_is_not_slower_stays_together(rate: float) -> None:
    runs = play(lambda now: rate, lambda now: 1.0, 20, noise=0.05)
    assert not any(is_alone for _, is_alone in runs)


def test_passing_noise_changes_nothing() -> None:
    """One run in twenty meets somebody else on its core, for ten milliseconds."""
    rng = random.Random(5)
    runs = play(lambda now: 0.3 if rng.random() < 0.05 else 1.9, lambda now: 1.0, 20)
    assert not any(is_alone for _, is_alone in runs)


@pytest.mark.parametrize(("team", "alone"), [(0.3, 0.6), (0.5, 0.67), (0.7, 1.0)])
def test_one_thread_works_alone_where_that_is_faster(team: float, alone: float) -> None:
    runs = play(lambda now: team, lambda now: alone, 30, noise=0.3)
    share = sum(is_alone for _, is_alone in runs) / len(runs)
    assert share > 0.95
    assert num_switches(runs) < 60, "the team is looked at less and less often"


def test_the_team_returns_when_the_others_have_gone() -> None:
    def team(now: float) -> float:
        return 0.4 if now < 10 else 1.9

    runs = play(team, lambda now: 0.7 if now < 10 else 1.0, 30)
    last_alone = max(now for now, is_alone in runs if is_alone)
    assert 9 < last_alone < 13.5


def test_a_trial_alone_that_was_slower_is_rarely_repeated() -> None:
    """Every core is shared: the team is slow, and one thread alone would be slower still."""
    runs = play(lambda now: 0.8, lambda now: 0.5, 60, noise=0.2)
    share = sum(is_alone for _, is_alone in runs) / len(runs)
    assert share < 0.08


def test_sides_that_are_alike_do_not_alternate() -> None:
    runs = play(lambda now: 0.62, lambda now: 0.66, 60, noise=0.3)
    assert num_switches(runs) < 80
