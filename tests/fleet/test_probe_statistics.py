import math
import random
import statistics

import pytest

from headlong.decode.logprobs import TokenLogprob, TopLogprob
from headlong.fleet.probe_statistics import LOOKS, Comparison, Ruling, compare, surprise

SHARES = (0.5, 0.2, 0.15, 0.08, 0.04, 0.02, 0.01)
"""A distribution of which the scorer tells the best four."""
NUM_PROMPTS, NUM_TOKENS = 8, 48


def scored(token: int, num_top: int = 4) -> TokenLogprob:
    top = tuple(TopLogprob(i, math.log(SHARES[i])) for i in range(num_top))
    return TokenLogprob(token, math.log(SHARES[token]), top)


def answers(dice: random.Random, weights: list[float], temperature: float) -> list[list[float]]:
    """Sample as an engine with these weights would; return mean surprises by prompt."""

    def answer() -> float:
        tokens = dice.choices(range(len(SHARES)), weights, k=NUM_TOKENS)
        return statistics.fmean(surprise(scored(token), temperature) for token in tokens)

    return [[answer() for _ in range(LOOKS[-1])] for _ in range(NUM_PROMPTS)]


def tempered(temperature: float) -> list[float]:
    return [share ** (1 / temperature) for share in SHARES]


@pytest.mark.parametrize(
    ("temperature", "num_top", "bound"),
    [(0.7, 7, 1e-9), (1.0, 7, 1e-9), (1.0, 4, 1e-9), (0.7, 4, 0.05)],
)
def test_honest_samples_surprise_nobody(temperature: float, num_top: int, bound: float) -> None:
    """Exact with all alternatives told, and at temperature 1 whatever is told."""
    weights = tempered(temperature)
    total = sum(weights)
    mean = sum(
        weight / total * surprise(scored(token, num_top), temperature)
        for token, weight in enumerate(weights)
    )
    assert mean == pytest.approx(0, abs=bound)


def test_tokens_beyond_the_alternatives_bound_the_surprise() -> None:
    """A token of probability zero must not make one answer outweigh all others."""
    never = TokenLogprob(9, -math.inf, scored(0).top)
    assert surprise(never, 1.0) == surprise(scored(3), 1.0)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_equal_engines_are_never_told_apart(temperature: float) -> None:
    dice = random.Random(7)
    for _ in range(40):
        one, other = (answers(dice, tempered(temperature), temperature) for _ in range(2))
        for look in LOOKS:
            seen = compare([row[:look] for row in one], [row[:look] for row in other])
            assert not seen.is_different
        assert seen.is_same


@pytest.mark.parametrize(
    "weights", [[1.0] * len(SHARES), tempered(0.5), [1.0, *[0.0] * 6]], ids=str
)
def test_other_distributions_are_told_apart_at_once(weights: list[float]) -> None:
    """Too flat, too sharp, and greedy: a sharper text is as wrong as a wilder one."""
    dice = random.Random(7)
    honest, lying = answers(dice, tempered(1.0), 1.0), answers(dice, weights, 1.0)
    first = LOOKS[0]
    assert compare([row[:first] for row in lying], [row[:first] for row in honest]).is_different


def test_prompts_that_differ_do_not_hide_engines_that_do() -> None:
    """One prompt is sure, another is not; within each the two sides are far apart."""
    plain = [[place + noise for noise in (0.0, 0.02, 0.04)] for place in (-4.0, -1.0, 0.0)]
    seen = compare([[value - 0.3 for value in row] for row in plain], plain)
    assert seen.difference == pytest.approx(-0.3)
    assert seen.is_different


def test_few_noisy_samples_decide_nothing() -> None:
    seen = compare([[-1.0, 1.0]], [[-1.2, 1.4]])
    assert not seen.is_different
    assert not seen.is_same


def test_a_text_that_has_derailed_is_found_by_its_log_probability() -> None:
    """Behind junk nothing is expected any more, so nothing surprises: seen with vLLM on a CPU."""
    same, far, odd = Comparison(0.0, 0.05), Comparison(-3.4, 0.5), Comparison(-0.4, 0.1)
    assert Ruling(same, far).is_different
    assert Ruling(same, Comparison(0.1, 0.3)).is_same
    hinted = Ruling(same, odd)
    assert not hinted.is_different
    assert not hinted.is_same
