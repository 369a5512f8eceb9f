"""The draft policy: near the best fixed K wherever that is, off where drafts lose."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from headlong.config import MtpMode
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Draft
from headlong.engine.draft_policy import Candidate, DraftPolicy
from headlong.engine.request import off_reason
from headlong.engine.request_policy import RequestPolicy
from policy_world import Chance, World, best_fixed, play, round_result

NUM_ROUNDS = 600


def kernel_pass(num_rows: int) -> float:
    """The native kernels' curve: nearly flat at first, then every row costs."""
    return 0.0032 + 0.0002 * (num_rows - 1) + 0.0004 * max(0, num_rows - 4)


def expensive_pass(num_rows: int) -> float:
    """llama.cpp's curve on a CPU: every row costs as much as the first one."""
    return 0.003 * num_rows


def tiled_pass(num_rows: int) -> float:
    """The numpy backend's curve: rows are free up to whole tiles of eight."""
    return 0.08 * -(-num_rows // 8)


def together_pass(num_rows: float) -> float:
    """Two cores on one die, as measured: little bandwidth, cheap rows."""
    return _read((3.35, 3.5, 3.75, 4.0, 4.4, 4.75), num_rows)


def apart_pass(num_rows: float) -> float:
    """The same machine when its cores are on two dies: twice the bandwidth, expensive rows."""
    return _read((2.8, 3.2, 3.75, 4.35, 5.05, 5.6), num_rows)


def _read(curve_ms: Sequence[float], num_rows: float) -> float:
    low = min(int(num_rows), len(curve_ms) - 1)
    before, after = curve_ms[low - 1 : low + 1]
    return 0.001 * (before + (num_rows - low) * (after - before))


def steady(chance: float) -> Chance:
    """Every guess has the same chance."""
    return lambda rng, time: chance


def mixed(share_easy: float) -> Chance:
    """Some guesses are nearly certain, the others are not; a head can tell."""
    return lambda rng, time: 0.97 if rng.random() < share_easy else 0.35


def changing(before: float, after: float) -> Chance:
    """The subject changes half-way."""
    return lambda rng, time: before if time < NUM_ROUNDS // 2 else after


def warm(rng: random.Random, time: int) -> float:
    """Guesses at a temperature: unlikely ones stand as well, where noise made both sides pick."""
    return 0.27 + 0.63 * rng.choice((0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 0.9, 0.98, 0.99, 1.0))


def without_noise(chance: float) -> float:
    """What a head says at a temperature: the probability before there was noise."""
    return (chance - 0.27) / 0.63


def boast(chance: float) -> float:
    """What a head says that is always sure."""
    return 0.99


WORLDS = {
    "code": World(kernel_pass, chance=mixed(0.6)),
    "prose": World(kernel_pass, chance=mixed(0.25)),
    "even": World(kernel_pass, chance=steady(0.7)),
    "warm": World(kernel_pass, chance=warm, says=without_noise),
    "weak": World(kernel_pass, chance=steady(0.4)),
    "boasting head": World(kernel_pass, chance=steady(0.7), says=boast),
    "useless head": World(kernel_pass, chance=steady(0.05), says=boast),
    "expensive rows": World(expensive_pass, chance=mixed(0.5)),
    "free rows": World(lambda num_rows: 0.01, chance=steady(0.8)),
    "tiles": World(tiled_pass, step_s=0.02, shared_step_s=0.01, chance=steady(0.6)),
    "draft model": World(kernel_pass, step_s=0.0012, shared_step_s=0.0, chance=mixed(0.7)),
    "becomes hard": World(kernel_pass, chance=changing(0.85, 0.1)),
    "becomes easy": World(kernel_pass, chance=changing(0.1, 0.85)),
}


@pytest.mark.parametrize("num_sequences", [1, 8])
@pytest.mark.parametrize("name", WORLDS)
def test_auto_is_near_the_best_fixed_length(name: str, num_sequences: int) -> None:
    """From the first round on, costs and chances still to be learned."""
    world = WORLDS[name]
    _, best = best_fixed(world, NUM_ROUNDS, num_sequences)
    auto = play(world, "auto", NUM_ROUNDS, num_sequences).tokens_per_second
    assert auto >= 0.95 * best


@pytest.mark.parametrize("name", ["warm", "even"])
def test_probabilities_are_taken_for_what_they_proved_worth(name: str) -> None:
    """Guards thresholds in a head's own words, which mean something else at a temperature."""
    world = WORLDS[name]
    _, best = best_fixed(world, NUM_ROUNDS)
    rates = [play(world, "auto", NUM_ROUNDS, seed=seed).tokens_per_second for seed in range(3)]
    assert sum(rates) / 3 >= 0.98 * best


def test_a_draft_ends_where_its_chance_does() -> None:
    """Though at a temperature even the least likely token has some, a few of them have none."""
    request = play(WORLDS["warm"], "auto", NUM_ROUNDS).players[0].policy
    assert request.thresholds["head"].can_extend([])
    assert request.thresholds["head"].can_extend([0.95, 0.95])
    assert not request.thresholds["head"].can_extend([0.05, 0.05, 0.05])


def test_a_clear_gain_is_seldom_interrupted() -> None:
    """A round without drafts, to see what it costs, is expensive where drafts pay well."""
    lengths = play(WORLDS["free rows"], "auto", NUM_ROUNDS, num_sequences=8).lengths
    assert lengths[NUM_ROUNDS // 2 :].count(0) <= 3


@pytest.mark.parametrize("name", ["code", "prose", "warm"])
def test_a_cost_learned_at_a_bad_moment_does_not_keep_drafts_short(name: str) -> None:
    """A neighbour took the core whenever longer drafts were looked at so far."""
    world = replace(WORLDS[name], pass_s=together_pass, ask_s=0.0003)
    rates = []
    for seed in range(3):
        policy = DraftPolicy()
        for num_rows in (1, 2) * 30:
            policy.costs.observe_pass(num_rows, together_pass(num_rows))
        for num_rows in (3, 2) * 5:
            slowness = 1.5 if num_rows == 3 else 1.0
            policy.costs.observe_pass(num_rows, slowness * together_pass(num_rows))
        rates.append(play(world, "auto", 150, policy=policy, seed=seed).tokens_per_second)
    _, best = best_fixed(world, 150)
    assert sum(rates) / 3 >= 0.96 * best


@pytest.mark.parametrize("name", ["code", "even", "free rows", "useless head"])
def test_noisy_clocks_mislead_little(name: str) -> None:
    world = WORLDS[name]
    _, best = best_fixed(world, NUM_ROUNDS)
    auto = play(replace(world, noise=0.2), "auto", NUM_ROUNDS).tokens_per_second
    assert auto >= 0.93 * best


FLIPPING = World(
    together_pass,
    step_s=0.00012,
    shared_step_s=0.00006,
    ask_s=0.00023,
    chance=steady(0.72),
    says=boast,
    fade=0.9,
    other_pass_s=apart_pass,
)


def share_of_oracle(world: World, num_rounds: int, num_sequences: int = 1) -> float:
    """Compare "auto" with the best fixed length of each state in turn."""
    assert world.other_pass_s is not None
    curves = (world.pass_s, world.other_pass_s)
    states = [replace(world, pass_s=curve, other_pass_s=None) for curve in curves]
    best = [best_fixed(state, NUM_ROUNDS, num_sequences)[1] for state in states]
    rates = [
        play(world, "auto", num_rounds, num_sequences, seed=seed).tokens_per_second
        for seed in range(3)
    ]
    return sum(rates) / 3 / (sum(best) / 2)


@pytest.mark.parametrize(
    ("flip_s", "noise", "share"),
    [(8.0, 0.0, 0.985), (1.5, 0.0, 0.98), (0.2, 0.0, 0.96), (1.5, 0.1, 0.95), (0.2, 0.1, 0.95)],
)
def test_auto_follows_a_machine_that_flips(flip_s: float, noise: float, share: float) -> None:
    """Rows become expensive or cheap every 1,700, 320 or 43 rounds, and nobody tells."""
    world = replace(FLIPPING, flip_s=flip_s, noise=noise)
    assert share_of_oracle(world, round(4 * max(flip_s, 0.6) / 0.0046)) >= share


def test_eight_streams_follow_a_machine_that_flips() -> None:
    """The same shapes, eight times as wide."""
    world = replace(
        FLIPPING,
        pass_s=lambda num_rows: 2 * together_pass(num_rows / 8),
        other_pass_s=lambda num_rows: 2 * apart_pass(num_rows / 8),
        ask_s=0.0001,
        flip_s=1.5,
    )
    assert share_of_oracle(world, 800, num_sequences=8) >= 0.96


@pytest.mark.parametrize("num_sequences", [1, 8])
@pytest.mark.parametrize("name", ["useless head", "expensive rows"])
def test_drafting_that_loses_is_left(name: str, num_sequences: int) -> None:
    world = WORLDS[name]
    plain = play(world, "off", NUM_ROUNDS, num_sequences).tokens_per_second
    outcome = play(world, "auto", NUM_ROUNDS, num_sequences)
    assert outcome.tokens_per_second >= 0.97 * plain
    assert outcome.players[0].policy.num_tokens == 0
    assert "does not pay" in str(off_reason(outcome.players[0].policy))


def test_eight_streams_share_rows_where_they_pay() -> None:
    """Sixteen rows for the cost of eight: what one sequence does not use another can."""
    world = World(lambda num_rows: 0.005 + 0.002 * max(0, num_rows - 16), chance=steady(0.7))
    policy = DraftPolicy()
    easy_world = replace(world, chance=steady(0.9))
    play(world, "auto", 100, 8, policy)  # the costs are known
    outcome = play(easy_world, "auto", 200, 8, policy)
    plain = play(easy_world, "off", 200, 8).tokens_per_second
    assert outcome.tokens_per_second > 1.2 * plain
    assert 4 <= sum(one.policy.num_tokens for one in outcome.players) <= 12


def full_round(
    policy: DraftPolicy,
    requests: Sequence[RequestPolicy],
    plans: Sequence[DraftPlan],
    nums_accepted: Sequence[int],
    pass_s: Callable[[int], float],
) -> None:
    """Let a round be over in which all was drafted that was asked for."""
    drafts = [
        Draft((0,) * plan.num_tokens, (0.9,) * plan.num_tokens, ("head",) * plan.num_tokens)
        if plan.runs_drafter
        else Draft()
        for plan in plans
    ]
    seconds = pass_s(sum(len(draft.token_ids) + 1 for draft in drafts))
    results = [
        round_result(draft, num, pass_s=seconds)
        for draft, num in zip(drafts, nums_accepted, strict=True)
    ]
    policy.observe(requests, plans, results, seconds)


def test_the_surer_sequence_gets_the_rows() -> None:
    policy = DraftPolicy()
    requests = [policy.new_request("auto", 0.0) for _ in range(2)]
    rng = random.Random(5)
    for _ in range(300):
        plans = policy.plan([Candidate(one) for one in requests], max_rows=64)
        nums_accepted = []
        for plan, chance in zip(plans, (0.9, 0.1), strict=True):
            stood = [rng.random() < chance for _ in range(plan.num_tokens * plan.runs_drafter)]
            nums_accepted.append([*stood, False].index(False))
        pass_s = lambda num_rows: 0.005 + 0.001 * max(0, num_rows - 2)  # noqa: E731
        full_round(policy, requests, plans, nums_accepted, pass_s)
    assert requests[0].num_tokens > requests[1].num_tokens


def test_second_request_begins_where_the_first_had_come_to() -> None:
    world, policy = WORLDS["code"], DraftPolicy()
    play(world, "auto", 300, policy=policy)
    best, _ = best_fixed(world, 600)
    ratios = [
        play(world, "auto", 60, policy=policy, seed=seed).tokens_per_second
        / play(world, best, 60, seed=seed).tokens_per_second
        for seed in range(12)
    ]
    assert sum(ratios) / len(ratios) >= 0.97


def test_equal_promises_do_not_make_it_hop() -> None:
    """Chance alone moves the estimates of every depth; the draft length must not follow it."""
    world = World(kernel_pass, chance=steady(0.7), says=boast)
    outcome = play(replace(world, noise=0.1), "auto", NUM_ROUNDS)
    settled = outcome.lengths[200:]
    usual = max(set(settled), key=settled.count)
    # Plain rounds and looks at longer drafts come in between, on purpose and rarely.
    assert sum(abs(length - usual) > 1 for length in settled) <= 0.08 * len(settled)
    assert sum(a != b for a, b in pairwise(settled)) <= 0.15 * len(settled)


def test_drafts_must_pay_for_what_the_drafter_catches_up_on() -> None:
    """Guards long prompts that are read by the head for a gain of a few percent."""
    for num_backlog_rows, drafts in ((0, True), (50, True), (5000, False)):
        policy = DraftPolicy()
        world = World(lambda num_rows: 0.007 + 0.0004 * num_rows, chance=steady(0.7))
        play(world, "auto", 300, 8, policy)
        candidates = [
            Candidate(policy.new_request("auto", 0.0), num_backlog_rows) for _ in range(8)
        ]
        policy.plan(candidates, max_rows=64)  # may be a plain round
        plans = policy.plan(candidates, max_rows=64)
        assert (sum(plan.runs_drafter for plan in plans) > 1) == drafts, num_backlog_rows


def test_mixed_batches_respect_what_was_asked() -> None:
    policy = DraftPolicy()
    modes: list[MtpMode] = ["off", 3, "auto", 1]
    requests = [policy.new_request(mtp, 0.7, honours_k=True) for mtp in modes]
    for _ in range(20):
        plans = policy.plan([Candidate(one) for one in requests], max_rows=64)
        assert [plans[i].num_tokens for i in (0, 1, 3)] == [0, 3, 1]
        policy.costs.observe_pass(8, 0.01)


def test_auto_drafts_beside_fixed_lengths() -> None:
    """Guards waiting for ever for a plain round, which the others do not allow."""
    policy = DraftPolicy()
    modes: list[MtpMode] = ["auto", 3]
    requests = [policy.new_request(mtp, 0.0, honours_k=True) for mtp in modes]
    num_drafted = 0
    for _ in range(100):
        plans = policy.plan([Candidate(one) for one in requests], max_rows=64)
        nums_accepted = [plan.num_tokens * plan.runs_drafter for plan in plans]
        full_round(policy, requests, plans, nums_accepted, kernel_pass)
        num_drafted += nums_accepted[0]
    assert num_drafted > 100


def test_plain_pass_is_measured_before_the_first_draft() -> None:
    """Guards believing that a plain pass costs as much as the only one ever measured."""
    policy = DraftPolicy()
    request = policy.new_request("auto", 0.0)
    candidates = [Candidate(request)]
    plans = policy.plan(candidates, max_rows=64)
    assert plans[0].num_tokens == 0
    assert policy.plain_s(1, 4, pass_s=0.015) is None
    full_round(policy, [request], plans, [0], lambda num_rows: 0.010)
    assert policy.plan(candidates, max_rows=64)[0].num_tokens > 0
    for _ in range(60):
        policy.costs.observe_pass(1, 0.010)
        policy.costs.observe_pass(4, 0.015)
        policy.costs.observe_beside(0, 0.0001)
    slow = policy.plain_s(1, 4, pass_s=0.030)
    assert slow == pytest.approx(0.020, rel=0.01), "what slowed one would have slowed the other"
