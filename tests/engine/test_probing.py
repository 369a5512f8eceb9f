"""Probes while drafting does not pay: shared by all streams, rare where they lose much."""

from collections.abc import Sequence
from typing import Any

import pytest

from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Draft
from headlong.engine.draft_policy import PROBE_SHARE, Candidate, DraftPolicy
from headlong.engine.request import off_reason
from headlong.engine.request_policy import INTERVAL
from policy_world import World, play, round_result


def expensive_pass(num_rows: int) -> float:
    """Every row costs as much as the first one."""
    return 0.003 * num_rows


def never(rng: object, time: int) -> float:
    """No guess ever stands."""
    return 0.0


def eight(policy: DraftPolicy, num_backlog_rows: Sequence[int] = (0,) * 8) -> list[Candidate]:
    """Return eight new requests."""
    return [Candidate(policy.new_request("auto", 0.0), num) for num in num_backlog_rows]


def finish(
    policy: DraftPolicy,
    candidates: Sequence[Candidate],
    plans: Sequence[DraftPlan],
    num_accepted: int = 0,
    draft_s: float = 0.0,
) -> list[bool]:
    """Let a round be over in which probes drafted all; return which requests probed."""
    lengths = [plan.num_tokens if plan.runs_drafter else 0 for plan in plans]
    pass_s = policy.costs.pass_s(len(lengths) + sum(lengths))
    results = []
    for num in lengths:
        draft = Draft((0,) * num, (0.5,) * num, ("head",) * num, num_steps=num)
        results.append(round_result(draft, num_accepted if num else 0, draft_s, pass_s))
    requests = [one.policy for one in candidates]
    policy.observe(requests, plans, results, pass_s + draft_s)
    return [plan.runs_drafter for plan in plans]


def rounds_until_a_probe(
    policy: DraftPolicy, candidates: Sequence[Candidate], **outcome: Any
) -> tuple[int, int]:
    """Run until a request probes; return after how many rounds, and which one."""
    for num_rounds in range(1, 2000):
        plans = policy.plan(candidates, max_rows=64)
        probed = finish(policy, candidates, plans, **outcome)
        assert sum(probed) <= 1, "streams share their probes"
        if any(probed):
            return num_rounds, probed.index(True)
    raise AssertionError("no request probes")


def test_idle_streams_share_their_probes() -> None:
    """Guards eight streams that each pay for finding out the same."""
    policy = DraftPolicy()
    world = World(lambda num_rows: 0.0032 + 0.0006 * num_rows, chance=never)
    play(world, "auto", 200, 8, policy)
    candidates = eight(policy)
    num_probes = 0
    for _ in range(160):
        plans = policy.plan(candidates, max_rows=64)
        probed = finish(policy, candidates, plans)
        assert sum(probed) <= 1
        num_probes += any(probed)
    assert 1 <= num_probes <= 160 // INTERVAL


@pytest.mark.parametrize(
    ("chance", "pass_s", "row_s"),
    [(0.0, 0.0024, 0.0006), (0.0, 0.01, 0.0002), (0.75, 0.0024, 0.0006)],
)
def test_probes_lose_a_small_share_of_the_time(chance: float, pass_s: float, row_s: float) -> None:
    """Guards hurrying on because a probe stood: with eight streams even that may be no gain."""
    policy = DraftPolicy()
    world = World(lambda num_rows: pass_s + row_s * num_rows, chance=lambda rng, time: chance)
    play(world, "auto", 400, 8, policy)
    auto = play(world, "auto", 1000, 8, policy)
    assert all(one.policy.num_tokens == 0 for one in auto.players)
    plain = play(world, "off", 1000, 8)
    assert auto.tokens_per_second >= (1 - 2 * PROBE_SHARE) * plain.tokens_per_second


def test_probes_are_made_where_the_drafter_has_least_to_catch_up_on() -> None:
    """Guards long prompts that the head reads only to find that drafts do not pay."""
    policy = DraftPolicy()
    world = World(lambda num_rows: 0.0024 + 0.0006 * num_rows, chance=lambda rng, time: 0.75)
    play(world, "auto", 400, 8, policy)
    candidates = eight(policy, (700, 650, 800, 90, 700, 75, 600, 900))
    _, which = rounds_until_a_probe(policy, candidates, draft_s=0.01)
    assert which == 5
    num_rounds, _ = rounds_until_a_probe(policy, candidates)
    assert num_rounds > 200, "it took as long as a pass"


@pytest.mark.parametrize(("num_accepted", "is_rare"), [(0, True), (2, False)])
def test_a_probe_costs_its_rows_unless_they_stand(num_accepted: int, is_rare: bool) -> None:
    """Guards probes that seem cheap, since most of what they take is part of the pass."""
    policy = DraftPolicy()
    world = World(lambda num_rows: 0.0014 + 0.0007 * num_rows, chance=never)
    play(world, "auto", 800, 8, policy)
    candidates = eight(policy)
    rounds_until_a_probe(policy, candidates, num_accepted=num_accepted, draft_s=0.0005)
    num_rounds, _ = rounds_until_a_probe(policy, candidates)
    assert (num_rounds > 4 * INTERVAL) == is_rare


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[DraftPolicy]:
    """Policies that have decided, once for each decision."""
    made: list[DraftPolicy] = []
    decide = DraftPolicy._decide

    def note(self: DraftPolicy, *args: Any) -> None:
        made.append(self)
        decide(self, *args)

    monkeypatch.setattr(DraftPolicy, "_decide", note)
    return made


def test_an_idle_decision_is_kept_for_long(decisions: list[DraftPolicy]) -> None:
    """Guards planning for its own sake: it costs as much as a stream's sampling."""
    policy = DraftPolicy()
    world = World(expensive_pass, chance=never)
    play(world, "auto", 500, 8, policy)
    assert len(decisions) <= 1 + 500 // INTERVAL
    decisions.clear()
    candidates = eight(policy)
    for _ in range(40):  # one after the other ends, and another begins
        for _ in range(8):
            finish(policy, candidates, policy.plan(candidates, max_rows=64))
        assert all(off_reason(one.policy) is not None for one in candidates), "all are told why"
        candidates = [*candidates[1:], Candidate(policy.new_request("auto", 0.0))]
    assert len(decisions) <= 41 + 320 // INTERVAL


@pytest.mark.parametrize("num_accepted", [0, 1])
def test_a_probe_is_news_only_if_it_stood(decisions: list[Any], num_accepted: int) -> None:
    policy = DraftPolicy()
    world = World(lambda num_rows: 0.0024 + 0.0006 * num_rows, chance=never)
    play(world, "auto", 800, 8, policy)
    candidates = eight(policy)
    rounds_until_a_probe(policy, candidates)
    for _ in range(INTERVAL):  # the next decision is far
        finish(policy, candidates, policy.plan(candidates, max_rows=64))
        if len(decisions) and policy._next_plan == policy._round + INTERVAL:
            break
    policy._next_probe = 0
    rounds_until_a_probe(policy, candidates, num_accepted=num_accepted)
    decisions.clear()
    policy._next_plain = policy._round + 100
    policy.plan(candidates, max_rows=64)
    assert len(decisions) == num_accepted


def test_poor_drafts_of_one_request_do_not_keep_the_next_from_drafting() -> None:
    policy = DraftPolicy()
    poor = World(lambda num_rows: 0.0025 + 0.0005 * num_rows, chance=never, says=lambda _: 0.95)
    good = World(poor.pass_s, chance=lambda rng, time: 0.95)
    play(good, "auto", 1000, 1, policy)
    assert play(poor, "auto", 60, 1, policy).players[0].policy.num_tokens == 0
    lengths = play(good, "auto", 3, 1, policy).lengths
    assert max(lengths) > 1, "a probe would come later"
