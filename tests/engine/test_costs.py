"""Prices: learned from noisy measurements, ordered by rows, moved and tilted by the weather."""

import random

import pytest

from headlong.engine.costs import CostModel, DraftWork


def learned(curve: dict[int, float], noise: float = 0.0, num_rounds: int = 200) -> CostModel:
    """Return a model that has seen passes over these rows, in turn."""
    rng = random.Random(1)
    costs = CostModel()
    for _ in range(num_rounds):
        for num_rows, seconds in curve.items():
            costs.observe_pass(num_rows, seconds * rng.lognormvariate(0.0, noise))
    costs.refresh()
    return costs


def test_unmeasured_passes_are_read_off_the_curve() -> None:
    costs = learned({1: 0.010, 5: 0.018})
    assert costs.pass_s(3) == pytest.approx(0.014, rel=0.01)
    assert costs.pass_s(2.5) == pytest.approx(0.013, rel=0.01)
    assert costs.pass_s(7) == pytest.approx(0.022, rel=0.01), "beyond the last point: it goes on"


def test_first_guess_beyond_one_point_is_hopeful() -> None:
    costs = learned({1: 0.010})
    assert 0.010 < costs.pass_s(2) < 0.012


def test_noise_does_not_make_more_rows_cheaper() -> None:
    costs = learned(dict.fromkeys(range(1, 10), 0.010), noise=0.3)
    prices = [costs.pass_s(n) for n in range(1, 10)]
    assert prices == sorted(prices)
    # Pooling must not pull the short passes down either: then drafts would seem dear.
    assert prices[-1] / prices[0] < 1.15


def test_steps_of_a_curve_are_kept() -> None:
    """Kernels work in tiles, so one row more may cost a whole tile."""
    costs = learned({n: 0.010 if n <= 8 else 0.020 for n in range(1, 13)}, noise=0.05)
    assert costs.pass_s(8) < 0.0125
    assert costs.pass_s(9) > 0.0175


def test_one_stalled_pass_changes_little() -> None:
    costs = learned({1: 0.010}, num_rounds=30)
    costs.observe_pass(1, 1.0)
    assert costs.pass_s(1) < 0.0115


def test_cold_first_measurement_does_not_stand() -> None:
    costs = CostModel()
    for seconds in (0.100, 0.011, 0.010):
        costs.observe_pass(1, seconds)
    costs.refresh()
    assert costs.pass_s(1) < 0.0125


def test_weather_moves_all_prices_alike() -> None:
    """Guards a slow neighbour that makes the only pass in use look dear against all others."""
    costs = learned({1: 0.010, 4: 0.014})
    for _ in range(60):
        costs.observe_pass(4, 0.028)
    costs.refresh()
    assert costs.pass_s(4) == pytest.approx(0.028, rel=0.03)
    assert costs.pass_s(4) / costs.pass_s(1) == pytest.approx(1.4, rel=0.15)


TOGETHER = {1: 3.35, 2: 3.5, 3: 3.75, 4: 4.0, 5: 4.4, 6: 4.75}
APART = {1: 2.8, 2: 3.2, 3: 3.75, 4: 4.35, 5: 5.05, 6: 5.6}
"""A pass on two cores of one die, and of two: a virtual machine is moved from one to the other."""


def test_a_tilted_curve_is_seen_at_once_and_as_a_whole() -> None:
    """A few passes of nearby sizes tell what others cost now that nobody runs."""
    costs = learned(TOGETHER)
    for _ in range(12):
        for num_rows in (3, 4, 5):
            costs.observe_pass(num_rows, APART[num_rows])
    costs.refresh()
    for num_rows in (1, 6):
        ratio = costs.pass_s(num_rows) / costs.pass_s(4)
        assert ratio == pytest.approx(APART[num_rows] / APART[4], rel=0.12)


def test_one_other_pass_among_equal_ones_tells_of_the_tilt() -> None:
    costs = learned(TOGETHER)
    for i in range(60):
        costs.observe_pass(1 if i in (20, 40) else 5, APART[1 if i in (20, 40) else 5])
    costs.refresh()
    assert costs.pass_s(5) / costs.pass_s(1) == pytest.approx(APART[5] / APART[1], rel=0.12)


def test_passes_of_one_size_leave_the_tilt_as_it_was() -> None:
    costs = learned(TOGETHER, noise=0.1)
    costs.observe_pass(4, 4.0)
    tilt = costs.tilt
    for i in range(300):
        costs.observe_pass(4, 3.0 if i % 2 else 6.0)
    assert costs.tilt == tilt


def test_tilted_prices_do_not_fall_with_rows() -> None:
    costs = learned(dict.fromkeys(range(8, 17), 0.010))
    for _ in range(10):
        for num_rows in (8, 16):
            costs.observe_pass(num_rows, 0.010 if num_rows == 8 else 0.008)
    costs.refresh()
    assert costs.tilt < 0
    prices = [costs.pass_s(n) for n in range(1, 40)]
    assert prices == sorted(prices)


def test_one_stalled_pass_tilts_little() -> None:
    costs = learned(TOGETHER, noise=0.05)
    before = costs.pass_s(5) / costs.pass_s(1)
    for num_rows, seconds in ((5, 4.4), (1, 6.7), (5, 4.4), (4, 4.0), (5, 4.4)):
        costs.observe_pass(num_rows, seconds)
    costs.refresh()
    assert costs.pass_s(5) / costs.pass_s(1) == pytest.approx(before, rel=0.15)


def test_a_new_curve_is_learned() -> None:
    costs = learned({1: 0.010, 4: 0.012})
    for _ in range(150):
        costs.observe_pass(1, 0.010)
        costs.observe_pass(4, 0.030)
    costs.refresh()
    assert costs.pass_s(4) / costs.pass_s(1) == pytest.approx(3.0, rel=0.15)


def test_known_is_what_was_measured_or_lies_between() -> None:
    costs = learned({2: 0.010, 6: 0.020})
    assert [costs.is_known(n) for n in (1, 2, 4, 6, 7)] == [False, True, True, True, False]
    assert not CostModel().is_known(1)


def test_draft_steps_of_many_sequences_share_their_depths() -> None:
    costs = learned({1: 0.010, 8: 0.020})
    rng = random.Random(2)
    for _ in range(2000):
        num_asks, depth = rng.choice([1, 2, 4, 8]), rng.randint(1, 5)
        num_steps = num_asks * depth
        seconds = 0.001 * num_asks + 0.0005 * depth + 0.0001 * num_steps
        costs.observe_beside(DraftWork(num_asks, depth, num_steps), seconds)
    for num_asks, depth in ((1, 3), (8, 1), (8, 4)):
        work = DraftWork(num_asks, depth, num_asks * depth)
        expected = 0.001 * num_asks + 0.0005 * depth + 0.0001 * num_asks * depth
        assert costs.draft_s(work) == pytest.approx(expected, rel=0.15)


def test_one_stalled_draft_changes_little() -> None:
    costs = learned({1: 0.010})
    work = DraftWork(1, 3, 3)
    for _ in range(100):
        costs.observe_beside(work, 0.001)
    costs.observe_beside(work, 1.0)
    assert costs.draft_s(work) < 0.0013


def test_what_rounds_do_beside_their_passes_is_told_from_drafting() -> None:
    costs = learned({1: 0.010})
    for _ in range(60):
        costs.observe_beside(DraftWork(), 0.0005)
        costs.observe_beside(DraftWork(1, 2, 2), 0.0015)
    assert costs.beside_s(DraftWork()) == pytest.approx(0.0005, rel=0.02)
    assert costs.draft_s(DraftWork(1, 2, 2)) == pytest.approx(0.001, rel=0.02)


def test_a_price_not_looked_at_for_long_follows_a_few_looks() -> None:
    """Guards a plain pass that was dear once, and makes drafts look good for ever after."""
    rng = random.Random(3)
    costs = learned({8: 0.014, 24: 0.020}, noise=0.1)
    for _ in range(8):
        for _ in range(15):
            costs.observe_pass(24, 0.020 * rng.lognormvariate(0.0, 0.1))
        costs.observe_pass(8, 0.010 * rng.lognormvariate(0.0, 0.1))
    costs.refresh()
    assert costs.pass_s(8) / costs.pass_s(24) == pytest.approx(0.5, rel=0.1)


def test_price_of_rows_that_waited_is_learned() -> None:
    costs = learned({1: 0.010})
    assert costs.look_s(100) == pytest.approx(0.003, rel=0.01), "a guess"
    for _ in range(60):
        costs.observe_look(3, 0.1)  # too few rows to tell
        costs.observe_look(500, 0.005)
    costs.observe_look(500, 5.0)
    assert costs.look_s(100) == pytest.approx(0.001, rel=0.25)


def test_long_contexts_are_no_part_of_a_price() -> None:
    """Guards short requests behind long ones: a plain pass seemed half as dear again as it was."""

    def pass_s(num_rows: int, reading: float) -> float:
        return 0.003 * (1 + reading) + 0.0003 * (num_rows - 1)

    costs = CostModel()
    for i in range(200):
        costs.reading = 1.4 if i < 150 else 0.2
        for num_rows in (1, 8, 12) if i < 150 else (12,):
            costs.observe_pass(num_rows, pass_s(num_rows, costs.reading))
    costs.refresh()
    assert costs.pass_s(8) == pytest.approx(pass_s(8, 0.2), rel=0.02)
    costs.reading = 3.0
    assert costs.pass_s(1) == pytest.approx(pass_s(1, 3.0), rel=0.02)


def test_caches_that_seem_to_take_all_of_a_pass_leave_a_price() -> None:
    costs = CostModel()
    costs.observe_pass(1, 0.003)
    costs.reading = 50.0
    costs.observe_pass(4, 0.004)
    assert 0.0 < costs.passes[4].seconds <= 0.004
