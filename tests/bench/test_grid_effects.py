"""What decides the gain: shares of made-up grids come out as they were made."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from headlong.bench.grid_effects import explain

TASKS = {"code": 0.4, "chat": 0.0, "story": -0.4}
KS = {1: -0.1, 4: 0.1}
COLOURS = ("red", "blue")


def full_grid(repeats: int = 2) -> tuple[list[dict[str, Any]], list[float]]:
    """Return a grid in which the log of the speed-up is exactly 0.3 + task + K."""
    levels = list(product(TASKS, KS, COLOURS)) * repeats
    cells = [{"task": task, "mtp": k, "colour": colour} for task, k, colour in levels]
    return cells, [0.3 + TASKS[task] + KS[k] for task, k, _ in levels]


def shares(effects: Any) -> dict[str, float]:
    """Return the share of every factor."""
    return {factor.factor: factor.share for factor in effects.factors}


def test_shares_of_a_full_grid_are_those_of_variance() -> None:
    cells, logs = full_grid()
    effects = explain(cells, logs)
    assert effects is not None
    of_task, of_k = (0.16 + 0 + 0.16) / 3, 0.01  # variances of the two effects
    found = shares(effects)
    assert found["task"] == pytest.approx(of_task / (of_task + of_k))
    assert found["mtp"] == pytest.approx(of_k / (of_task + of_k))
    assert found["colour"] == pytest.approx(0.0, abs=1e-12)
    assert effects.unexplained == pytest.approx(0.0, abs=1e-9)
    assert [factor.factor for factor in effects.factors] == ["task", "mtp", "colour"]
    assert effects.spread == pytest.approx(np.std(logs, ddof=1))


def test_levels_stand_for_their_speedups() -> None:
    cells, logs = full_grid()
    effects = explain(cells, logs)
    assert effects is not None
    task = effects.factors[0]
    assert {level.level: level.speedup for level in task.levels} == pytest.approx(
        {name: math.exp(0.3 + effect) for name, effect in TASKS.items()}
    )
    assert {level.num_cells for level in task.levels} == {8}


def test_levels_are_told_apart_in_a_lopsided_grid() -> None:
    """Most code cells have K=4; plain means would credit the task with what K does."""
    cells, logs = full_grid(1)
    extra = [i for i, cell in enumerate(cells) if cell["task"] == "code" and cell["mtp"] == 4]
    cells += [cells[i] for i in extra] * 10
    logs += [logs[i] for i in extra] * 10
    effects = explain(cells, logs)
    assert effects is not None
    levels = {f.factor: {x.level: x.speedup for x in f.levels} for f in effects.factors}
    assert levels["task"]["code"] == pytest.approx(math.exp(0.7))
    assert levels["mtp"][4] == pytest.approx(math.exp(0.4))
    assert sum(shares(effects).values()) == pytest.approx(1.0)


def test_lucky_cell_of_a_rare_level_bends_nothing() -> None:
    """One cell with another K, twice as fast as the rest: all numbers would go up with it."""
    cells, logs = full_grid()
    cells = [cell | {"mtp": 1} for cell in cells]
    cells.append(cells[0] | {"mtp": 4})
    logs.append(logs[0] + math.log(2))
    effects = explain(cells, logs)
    assert effects is not None
    assert effects.untold == ("mtp",)
    task = next(factor for factor in effects.factors if factor.factor == "task")
    plain = {name: math.exp(0.3 + effect) for name, effect in TASKS.items()}
    assert {level.level: level.speedup for level in task.levels} == pytest.approx(plain, rel=0.1)


def test_noise_is_credited_to_nobody() -> None:
    """As many columns as here explain a tenth of pure noise; that must not count as a finding."""
    rng = np.random.default_rng(7)
    cells, _ = full_grid(5)
    totals = []
    for _ in range(60):
        effects = explain(cells, list(rng.normal(size=len(cells))))
        assert effects is not None
        totals.append(sum(shares(effects).values()))
    assert np.mean(totals) < 0.05


def test_share_of_a_factor_survives_noise() -> None:
    rng = np.random.default_rng(3)
    cells, logs = full_grid(50)
    noise = rng.normal(scale=0.33, size=len(cells))  # about as much as the task itself
    effects = explain(cells, list(np.array(logs) + noise))
    assert effects is not None
    variance = (0.32 / 3) + 0.01 + 0.33**2
    assert shares(effects)["task"] == pytest.approx(0.32 / 3 / variance, abs=0.06)
    assert effects.unexplained == pytest.approx(0.33**2 / variance, abs=0.06)


def test_interplay_of_two_factors_is_named() -> None:
    cells, logs = full_grid(4)
    together = [0.2 if (c["task"] == "code") == (c["mtp"] == 4) else -0.2 for c in cells]
    rng = np.random.default_rng(1)
    values = np.array(logs) + np.array(together) + rng.normal(scale=0.02, size=len(cells))
    effects = explain(cells, list(values))
    assert effects is not None
    assert effects.interplay is not None
    assert set(effects.interplay.factors) == {"task", "mtp"}
    # Of ±0.2 the two factors explain a part themselves: K's average over three tasks.
    assert effects.interplay.share == pytest.approx(1 - sum(shares(effects).values()), abs=0.03)


def test_factor_that_plays_no_part_in_some_cells_is_not_confused_with_them() -> None:
    """N-gram cells have no head precision; what n-grams do belongs to the drafter alone."""
    cells = [
        {"drafter": drafter, "head_quant": quant}
        for drafter, quant in [("head", "q4"), ("head", "q8"), ("ngram", None)]
        for _ in range(4)
    ]
    logs = [0.5] * 8 + [0.1] * 4
    effects = explain(cells, logs)
    assert effects is not None
    assert shares(effects) == pytest.approx({"drafter": 1.0, "head_quant": 0.0}, abs=1e-9)


@pytest.mark.parametrize("num_cells", [0, 1, 5])
def test_too_few_cells_say_nothing(num_cells: int) -> None:
    cells, logs = full_grid()
    assert explain(cells[:num_cells], logs[:num_cells]) is None


def test_cells_that_are_all_the_same_say_nothing() -> None:
    cells, _ = full_grid()
    assert explain(cells, [0.2] * len(cells)) is None
