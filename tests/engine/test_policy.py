"""The policy: measured time and measured acceptance decide, 0 included, without hopping."""

import random
from itertools import pairwise

import pytest

from headlong.engine.policy import MAX_AUTO_TOKENS, Chances, CostModel, Policy, Price


def flat_costs(draft_token_s: float = 0.0, row_s: float = 0.0) -> CostModel:
    """Return a cost model with a pass of 10 ms plus `row_s` per extra row."""
    rows = range(1, MAX_AUTO_TOKENS + 2)
    return CostModel({n: Price(0.010 + row_s * (n - 1)) for n in rows}, Price(draft_token_s))


def play(policy: Policy, rounds: int, share_accepted: float) -> list[int]:
    """Run rounds in which the leading share of every draft stands; return the draft lengths."""
    lengths = []
    for _ in range(rounds):
        length = policy.choose()
        lengths.append(length)
        policy.observe(length, round(length * share_accepted))
    return lengths


def test_off_never_drafts() -> None:
    assert set(play(Policy("off", flat_costs()), 50, 1.0)) == {0}


@pytest.mark.parametrize("wanted", [1, 3, 6])
def test_a_number_is_obeyed(wanted: int) -> None:
    assert set(play(Policy(wanted, flat_costs(row_s=1.0)), 20, 0.0)) == {wanted}


def test_free_rows_and_good_drafts_go_deep() -> None:
    assert play(Policy("auto", flat_costs()), 40, 1.0)[-1] == MAX_AUTO_TOKENS


def test_rejected_drafts_that_cost_are_switched_off() -> None:
    lengths = play(Policy("auto", flat_costs(draft_token_s=0.003)), 60, 0.0)
    assert lengths[-10:].count(0) >= 9


def test_dear_rows_are_not_worth_it() -> None:
    """llama.cpp's curve on a CPU: every row costs as much as the first one."""
    lengths = play(Policy("auto", flat_costs(row_s=0.010, draft_token_s=0.001)), 60, 0.5)
    assert lengths[-10:].count(0) >= 9


def test_drafting_comes_back_when_it_pays_again() -> None:
    policy = Policy("auto", flat_costs(draft_token_s=0.003))
    play(policy, 100, 0.0)
    assert policy.current == 0
    play(policy, 400, 1.0)
    assert policy.current > 0


def test_probes_become_rare() -> None:
    lengths = play(Policy("auto", flat_costs(draft_token_s=0.008)), 1000, 0.0)
    assert sum(1 for length in lengths[200:] if length) <= 8


def test_equal_promises_do_not_make_it_hop() -> None:
    """Chance alone moves the estimates of every depth; the draft length must not follow it."""
    policy = Policy("auto", flat_costs(row_s=0.002, draft_token_s=0.0005))
    rng = random.Random(1)
    lengths = []
    for _ in range(400):
        lengths.append(policy.choose())
        num_accepted = 0
        while num_accepted < lengths[-1] and rng.random() < 0.7:
            num_accepted += 1
        policy.observe(lengths[-1], num_accepted)
    changes = sum(a != b for a, b in pairwise(lengths[50:]))
    assert changes <= 3
    assert min(lengths[50:]) >= 1


def test_unmeasured_passes_are_read_off_the_curve() -> None:
    costs = CostModel()
    costs.observe(1, 0.010, 0, 0.0)
    costs.observe(5, 0.018, 4, 0.004)
    assert costs.round_s(2) == pytest.approx(0.014 + 2 * 0.001)
    assert costs.round_s(7) == pytest.approx(0.018 + 7 * 0.001), "beyond the last point: flat"


def test_costs_follow_new_measurements() -> None:
    costs = CostModel()
    costs.observe(1, 0.010, 0, 0.0)
    for _ in range(100):
        costs.observe(1, 0.020, 0, 0.0)
    assert costs.round_s(0) == pytest.approx(0.020, rel=0.02)


def test_one_stalled_pass_changes_little() -> None:
    costs = CostModel()
    for seconds in (0.010, 0.500, 0.010):
        costs.observe(1, seconds, 0, 0.0)
    assert costs.round_s(0) == pytest.approx(0.010, rel=0.05)


def test_expected_tokens_count_the_next_token() -> None:
    chances = Chances()
    for _ in range(500):
        chances.observe(2, 1)
    assert chances.expected_tokens(0) == 1
    assert chances.expected_tokens(1) == pytest.approx(2, abs=0.05)
    assert chances.expected_tokens(2) == pytest.approx(2.1, abs=0.1), "depth 2 never stood"


def test_useless_head_costs_next_to_nothing() -> None:
    """Guards evidence that fades while off, which would start the drafting again and again."""
    for draft_token_s, row_s in ((0.002, 0.001), (0.0005, 0.0005), (0.0002, 0.0003)):
        lengths = play(Policy("auto", flat_costs(draft_token_s, row_s)), 2700, 0.0)
        assert sum(1 for length in lengths if length) <= 80


def test_plain_pass_is_measured_before_the_first_draft() -> None:
    """Guards believing that a plain pass costs as much as the only one ever measured."""
    costs = CostModel()
    policy = Policy("auto", costs)
    assert policy.choose() == 0
    costs.observe(1, 0.010, 0, 0.0)
    assert policy.choose() > 0


def test_off_says_why() -> None:
    policy = Policy("auto", flat_costs(draft_token_s=0.003))
    reasons = [policy.off_reason]
    play(policy, 100, 0.0)
    reasons.append(policy.off_reason)
    assert reasons[0] is None
    assert "does not pay" in str(reasons[1])
    assert Policy("off", flat_costs()).off_reason is None


def test_fewer_rows_never_seem_dearer_than_more() -> None:
    """Guards a price learned at a bad moment that nobody asks for again."""
    costs = CostModel({1: Price(0.010), 4: Price(0.050), 6: Price(0.014)})
    assert costs.round_s(3) == 0.014
    assert costs.round_s(2) <= 0.014


def test_cold_first_measurements_do_not_count() -> None:
    costs = CostModel()
    for seconds in (0.100, 0.030, 0.011, 0.010):
        costs.observe(1, seconds, 0, 0.0)
    assert costs.round_s(0) == 0.010
