"""Counters and ratios, on rounds that can be counted by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.decode.stats import DecodeStats, DrafterCount, Timings, walk_rounds

rounds = st.lists(
    st.lists(st.sampled_from(["ngram", "head"]), max_size=5).flatmap(
        lambda sources: st.tuples(st.just(sources), st.integers(0, len(sources)))
    )
)


def observed(seen: list[tuple[list[str], int]]) -> DecodeStats:
    stats = DecodeStats()
    for sources, num_accepted in seen:
        stats.observe_round(sources, num_accepted)
    return stats


BY_HAND = [(["ngram", "ngram", "head"], 2), (["head"], 1), (["head", "head"], 0), ([], 0)]


def test_counters_by_hand() -> None:
    stats = observed(BY_HAND)
    assert (stats.rounds, stats.num_drafted, stats.num_accepted) == (4, 6, 3)
    assert stats.by_drafter == {"ngram": DrafterCount(2, 2), "head": DrafterCount(4, 1)}
    assert stats.drafted_at_depth == [3, 2, 1]
    assert stats.reached_at_depth == [3, 1, 1]
    assert stats.accepted_at_depth == [2, 1, 0]
    assert stats.k_histogram == {0: 1, 1: 1, 2: 1, 3: 1}


def test_ratios_by_hand() -> None:
    stats = observed(BY_HAND)
    assert stats.acceptance_length == 1.75
    assert stats.acceptance_rate == 0.5
    assert stats.acceptance_at_depth == [0.5, 0.25, 0.0]
    assert stats.conditional_acceptance == [pytest.approx(2 / 3), 1.0, 0.0]


def test_short_drafts_do_not_lower_conditional_acceptance() -> None:
    stats = observed([(["head"], 1)] * 9 + [(["head", "head"], 2)])
    assert stats.acceptance_at_depth == [1.0, 0.1]
    assert stats.conditional_acceptance == [1.0, 1.0]


def test_no_rounds_have_quiet_ratios() -> None:
    stats = DecodeStats()
    assert stats.acceptance_length == 1.0
    assert stats.acceptance_rate == 0.0
    assert stats.acceptance_at_depth == []
    assert stats.conditional_acceptance == []


def test_undrafted_rounds_count_as_rounds() -> None:
    stats = observed([([], 0), (["head"], 1)])
    assert stats.acceptance_length == 1.5
    assert stats.k_histogram == {0: 1, 1: 1}


@given(rounds)
def test_length_is_one_plus_all_depths(seen: list[tuple[list[str], int]]) -> None:
    stats = observed(seen)
    assert 1 + sum(stats.acceptance_at_depth) == pytest.approx(stats.acceptance_length)
    assert sum(stats.accepted_at_depth) == stats.num_accepted
    assert sum(count.num_drafted for count in stats.by_drafter.values()) == stats.num_drafted
    assert sum(stats.k_histogram.values()) == stats.rounds


@given(rounds, rounds)
def test_merging_equals_observing_all(
    first: list[tuple[list[str], int]], second: list[tuple[list[str], int]]
) -> None:
    merged, other = observed(first), observed(second)
    merged.merge(other)
    assert merged == observed(first + second)
    assert other == observed(second)


def test_merging_copies_counters() -> None:
    merged, other = DecodeStats(), observed(BY_HAND)
    merged.merge(other)
    merged.merge(other)
    assert other == observed(BY_HAND)


def test_stats_survive_json() -> None:
    as_dict = observed(BY_HAND).to_dict()
    assert json.loads(json.dumps(as_dict)) == as_dict
    assert as_dict["acceptance_length"] == 1.75
    assert as_dict["by_drafter"] == {
        "ngram": {"num_drafted": 2, "num_accepted": 2},
        "head": {"num_drafted": 4, "num_accepted": 1},
    }


def test_more_accepted_than_drafted_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="2 of 1"):
        DecodeStats().observe_round(["head"], 2)


def test_speed_is_decode_tokens_over_decode_time() -> None:
    timings = Timings(prefill_s=9.0, decode_s=2.0, num_tokens=50)
    assert timings.tokens_per_second == 25.0
    assert json.loads(json.dumps(timings.to_dict())) == timings.to_dict()
    assert timings.to_dict()["tokens_per_second"] == 25.0


def test_speed_of_nothing_is_zero() -> None:
    assert Timings().tokens_per_second == 0.0


def test_speedup_counts_rounds_with_a_known_plain_cost_only() -> None:
    timings = Timings()
    speedups = [timings.measured_speedup]
    timings.observe_round(2.5, draft_s=0.5, verify_s=1.5, plain_s=None)
    speedups.append(timings.measured_speedup)
    timings.observe_round(3.5, draft_s=1.0, verify_s=2.0, plain_s=7.0)
    speedups.append(timings.measured_speedup)
    assert speedups == [None, None, 7.0 / 3.5]
    assert (timings.draft_s, timings.verify_s, timings.decode_s) == (1.5, 3.5, 6.0)
    assert timings.to_dict()["measured_speedup"] == 2.0


def test_rounds_begin_behind_the_tokens_that_were_emitted() -> None:
    standing = [3, 9, 9, 0, 1, 9, 1]
    assert list(walk_rounds(standing, 2)) == [(0, 2), (3, 0), (4, 1), (6, 1)]
    assert [position for position, _ in walk_rounds(standing, 1)] == [0, 2, 4, 6]
    assert list(walk_rounds([], 4)) == []
