"""Best K from known costs and acceptances, computed by hand."""

import pytest

from headlong.decode.stats import DecodeStats
from headlong.doctor.exactness import Decoder
from headlong.doctor.finding import Severity
from headlong.doctor.speed import (
    DraftCost,
    check_gain,
    check_pass_cost,
    expected_gains,
    fit_draft_cost,
    length_by_stats,
    measure_drafts,
    pass_s,
    time_passes,
    undisturbed,
)
from headlong.doctor.subject import Subject
from subjects import parts

CURVE = {1: 0.010, 2: 0.011, 3: 0.012, 5: 0.014, 9: 0.030}


def length(k: int) -> float:
    """Every depth stands half as often as the one before."""
    return sum(0.5**depth for depth in range(k + 1))


def test_gain_is_tokens_a_round_over_its_cost() -> None:
    gains = expected_gains(CURVE, DraftCost(0.001, 0.0005), length)
    # K=2: 1 + 1/2 + 1/4 tokens in a pass over 3 rows, 1 ms and twice half a millisecond.
    assert gains[2] == pytest.approx(1.75 * 0.010 / (0.012 + 0.002))
    # K=3: four rows lie half-way between the measured three and five.
    assert gains[3] == pytest.approx(1.875 * 0.010 / (0.013 + 0.0025))
    assert set(gains) == set(range(1, 9))


def test_best_k_is_named_and_worth_it() -> None:
    found = check_gain(CURVE, DraftCost(0.0, 0.0005), length)
    gains = {k: length(k) * 0.010 / (pass_s(CURVE, k + 1) + k * 0.0005) for k in range(1, 9)}
    best = max(gains, key=lambda k: gains[k])
    assert found.level is Severity.OK
    assert found.numbers["best_k"] == best == 2
    assert found.numbers["speedup"] == pytest.approx(gains[best])


def test_drafts_that_do_not_pay_are_a_warning() -> None:
    found = check_gain(CURVE, DraftCost(0.0, 0.0005), lambda k: 1.1)
    assert found.level is Severity.WARNING
    assert "auto" in found.remedy


def test_best_k_is_none_where_every_draft_loses() -> None:
    found = check_gain(CURVE, DraftCost(0.010, 0.010), lambda k: 1.1)
    assert found.level is Severity.WARNING
    assert (found.numbers["best_k"], found.numbers["speedup"]) == (0, 1.0)


def test_nothing_drafted_is_skipped() -> None:
    assert check_gain(CURVE, None, length).level is Severity.SKIPPED


def test_draft_cost_is_a_line_through_the_quickest_runs() -> None:
    cost = fit_draft_cost([[(1.0, 0.005), (1.0, 0.003)], [(6.0, 0.013), (6.0, 0.030)]])
    assert cost is not None
    assert cost.per_token_s == pytest.approx(0.002)
    assert cost.per_round_s == pytest.approx(0.001)
    assert cost.seconds(0) == 0.0
    assert cost.seconds(4) == pytest.approx(0.009)


def test_drafts_of_one_length_are_counted_by_token() -> None:
    cost = fit_draft_cost([[(2.0, 0.004)], [(2.2, 0.004)]])
    assert cost is not None
    assert cost.per_round_s == 0.0
    assert cost.per_token_s == pytest.approx(0.002)
    assert fit_draft_cost([]) is None


def test_busy_moments_do_not_bend_the_curve() -> None:
    """One row was disturbed all the time; it still cannot cost more than two rows."""
    curve = undisturbed({1: [9.0, 9.0, 9.0, 9.0], 2: [2.0, 2.0, 2.0, 8.0], 4: [3.0] * 4})
    assert curve == {1: 2.0, 2: 2.0, 4: 3.0}


def test_pass_cost_is_said_relative_to_one_row() -> None:
    curve = {1: 0.010, 2: 0.011, 3: 0.012, 5: 0.014, 7: 0.020, 9: 0.030}
    found = check_pass_cost(curve)
    assert found.numbers["relative"]["5"] == pytest.approx(1.4)
    assert "10.00 ms" in found.seen


def test_real_passes_and_drafts_are_measured(default_subject: Subject) -> None:
    backbone, tokenizer = parts(default_subject)
    curve = undisturbed(time_passes(backbone, (), 0.0))
    assert 0 < curve[1] <= curve[9]
    ids = tuple(tokenizer.encode_chat([{"role": "user", "content": "Hello"}]))
    decoder = Decoder(backbone, default_subject.make_drafter("head"), frozenset(), 12)
    cost, stats = measure_drafts(decoder, ids, 1)
    assert cost is not None
    assert cost.seconds(4) > 0
    assert stats.rounds > 0


def test_length_follows_from_chances_where_no_probe_was_made() -> None:
    stats = DecodeStats()
    stats.observe_round(["x", "x"], 2)
    stats.observe_round(["x", "x"], 0)
    by_k = length_by_stats(stats)
    assert by_k(1) == pytest.approx(1.5)
    assert by_k(2) == pytest.approx(2.0)
    assert by_k(3) == pytest.approx(2.5)  # as likely as the deepest one seen
    assert length_by_stats(DecodeStats())(3) == 1.0
