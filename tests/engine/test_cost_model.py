"""Costs: learned from noisy measurements, never falling with rows, moved by one slowdown."""

import random

import pytest

from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import NO_DRAFT, Draft
from headlong.engine.cost_model import CostModel
from headlong.engine.draft_policy import Candidate, DraftPolicy
from policy_world import World, best_fixed, play, round_result


def learned(curve: dict[int, float], noise: float = 0.0, num_rounds: int = 200) -> CostModel:
    """Return a model that has seen passes over these rows, in turn."""
    rng = random.Random(1)
    costs = CostModel()
    for _ in range(num_rounds):
        for num_rows, seconds in curve.items():
            costs.observe_pass(num_rows, seconds * rng.lognormvariate(0.0, noise))
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
    found = [costs.pass_s(n) for n in range(1, 10)]
    assert found == sorted(found)
    # Pooling must not pull the short passes down either: then drafts would seem expensive.
    assert found[-1] / found[0] < 1.15


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
    assert costs.pass_s(1) < 0.0125


def test_a_slow_moment_moves_all_costs_alike() -> None:
    """Guards a slow neighbour that makes the only pass in use look expensive against all others."""
    costs = learned({1: 0.010, 4: 0.014})
    for _ in range(60):
        costs.observe_pass(4, 0.028)
    assert costs.pass_s(4) == pytest.approx(0.028, rel=0.03)
    assert costs.pass_s(4) / costs.pass_s(1) == pytest.approx(1.4, rel=0.15)


def test_a_new_curve_is_learned() -> None:
    costs = learned({1: 0.010, 4: 0.012})
    for _ in range(150):
        costs.observe_pass(1, 0.010)
        costs.observe_pass(4, 0.030)
    assert costs.pass_s(4) / costs.pass_s(1) == pytest.approx(3.0, rel=0.15)


def test_known_is_what_was_measured_or_lies_between() -> None:
    costs = learned({2: 0.010, 6: 0.020})
    assert [costs.is_known(n) for n in (1, 2, 4, 6, 7)] == [False, True, True, True, False]
    assert not CostModel().is_known(1)


def test_drafting_costs_grow_with_steps() -> None:
    costs = learned({1: 0.010, 8: 0.020})
    rng = random.Random(2)
    for _ in range(4000):
        num_steps = rng.choice([0, 1, 2, 4, 8]) * rng.randint(1, 5)
        costs.observe_beside(num_steps, 0.0015 + 0.0001 * num_steps)
    for num_steps in (3, 8, 32):
        expected = 0.0015 + 0.0001 * num_steps
        assert costs.beside_s(num_steps) == pytest.approx(expected, rel=0.15)


def test_one_stalled_draft_changes_little() -> None:
    costs = learned({1: 0.010})
    for _ in range(100):
        costs.observe_beside(3, 0.001)
    costs.observe_beside(3, 1.0)
    assert costs.beside_s(3) < 0.0013


def test_what_rounds_do_beside_their_passes_is_told_from_drafting() -> None:
    costs = learned({1: 0.010})
    for _ in range(200):
        costs.observe_beside(0, 0.0005)
        costs.observe_beside(2, 0.0015)
    assert costs.beside_s(0) == pytest.approx(0.0005, rel=0.05)
    assert costs.beside_s(2) - costs.beside_s(0) == pytest.approx(0.001, rel=0.05)


def test_cost_of_a_backlog_follows_the_drafter() -> None:
    """A draft model takes longer to read a prompt than a head does."""
    costs = learned({1: 0.010})
    assert 0.001 < costs.backlog_s(100) < 0.01, "a guess"
    for _ in range(500):
        costs.observe_beside(0, 0.0)
        costs.observe_beside(4, 0.040)
        costs.observe_beside(1, 0.010)
    assert costs.backlog_s(100) == pytest.approx(0.08, rel=0.2)


def test_a_cost_not_measured_for_long_follows_a_few_measurements() -> None:
    """Guards a plain pass that was expensive once, and makes drafts look good for ever after."""
    rng = random.Random(3)
    costs = learned({8: 0.014, 24: 0.020}, noise=0.1)
    for _ in range(8):
        for _ in range(15):
            costs.observe_pass(24, 0.020 * rng.lognormvariate(0.0, 0.1))
        costs.observe_pass(8, 0.010 * rng.lognormvariate(0.0, 0.1))
    assert costs.pass_s(8) / costs.pass_s(24) == pytest.approx(0.5, rel=0.1)


def test_long_contexts_are_no_part_of_a_cost() -> None:
    """Guards short requests behind long ones: a plain pass seemed 1.5 times as expensive."""

    def pass_s(num_rows: int, reading: float) -> float:
        return 0.003 * (1 + reading) + 0.0003 * (num_rows - 1)

    costs = CostModel()
    for i in range(200):
        share = 1.4 if i < 150 else 0.2
        for num_rows in (1, 8, 12) if i < 150 else (12,):
            costs.observe_pass(num_rows, pass_s(num_rows, share), share)
    assert costs.pass_s(8) + costs.cache_s(0.2) == pytest.approx(pass_s(8, 0.2), rel=0.02)
    assert costs.pass_s(1) + costs.cache_s(3.0) == pytest.approx(pass_s(1, 3.0), rel=0.02)


def test_caches_that_seem_to_take_all_of_a_pass_leave_a_cost() -> None:
    costs = CostModel()
    costs.observe_pass(1, 0.003)
    costs.observe_pass(4, 0.004, cache_share=50.0)
    assert 0.0 < costs.pass_s(4) <= 0.004


def test_stalled_plain_pass_does_not_make_drafts_look_free() -> None:
    """Guards eight streams that drafted at a loss of 15 % for a minute after a busy start."""
    costs = CostModel()
    costs.observe_pass(8, 0.020)  # while a neighbour had the core
    for _ in range(10):
        costs.observe_pass(16, 0.012)
    assert costs.pass_s(8) <= costs.pass_s(16)
    for _ in range(10):
        costs.observe_pass(12, 0.010)
    assert costs.pass_s(8) <= costs.pass_s(12) < costs.pass_s(16), "rows have their cost again"


class SharedMachine(World):
    """Busy neighbours: one thread works alone, and is slower; every 1.6 s two are tried, 60 ms."""

    def pass_at(self, num_rows: int, clock_s: float) -> float:
        """Return how long a pass takes that begins at this time; from 4 s on all is quiet."""
        together_s = 0.0032 + 0.0003 * num_rows
        if clock_s > 4:
            return together_s
        return 5 * together_s if clock_s % 1.6 < 0.06 else 0.0045 + 0.0008 * num_rows


def test_costs_follow_a_team_that_shrinks_is_tried_and_returns() -> None:
    """Guards one list of costs for any number of threads, without a word about the change."""
    world = SharedMachine(lambda num_rows: 0.0, chance=lambda rng, time: 0.75, noise=0.05)
    _, best = best_fixed(world, 1000)
    assert play(world, "auto", 1000).tokens_per_second > 0.95 * best


def test_a_plain_round_never_takes_longer_than_one_with_drafts() -> None:
    """Guards a gain above the tokens of a pass: what rounds do beside it is learned too quickly."""
    policy = DraftPolicy()
    request = policy.new_request(3, 0.0)
    for _ in range(20):
        policy.costs.observe_pass(1, 0.010)
        policy.costs.observe_pass(4, 0.0101)
        policy.costs.observe_beside(0, 0.002)
    drafted = round_result(Draft((0,) * 3, (0.9,) * 3, ("head",) * 3), 3, pass_s=0.0101)
    assert policy.observe([request], [DraftPlan(3)], [drafted], 0.0102) == 0.0102


def test_a_round_that_had_to_be_prepared_has_no_cost() -> None:
    """Guards what a GPU compiles and captures before it replays it."""
    policy = DraftPolicy()
    request = policy.new_request("auto", 0.0)
    usual = round_result(NO_DRAFT, 0, pass_s=0.001)
    slow = usual._replace(verify_s=2.0, is_representative=False)
    for result in (slow, usual, slow, usual):
        plans = policy.plan([Candidate(request)], 64)
        policy.observe([request], plans, [result], result.verify_s)
    assert policy.costs.pass_s(1) == pytest.approx(0.001)
