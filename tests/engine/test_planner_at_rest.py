"""The plan while nobody drafts: tries are shared and become rare, and planning costs little."""

from collections.abc import Sequence
from typing import Any

import pytest

from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import Draft
from headlong.engine.planner import MAX_REST_ROUNDS, PROBE_SPACING, Planner
from headlong.engine.policy import Policy
from policy_world import World, play


def dear_pass(num_rows: int) -> float:
    """Every row costs as much as the first one."""
    return 0.003 * num_rows


DEAR = World(dear_pass, chance=lambda rng, time: 0.6)


def never(rng: object, time: int) -> float:
    """No guess ever stands."""
    return 0.0


def test_idle_sequences_share_their_tries() -> None:
    """Guards eight streams that each pay for finding out the same."""
    world = World(lambda num_rows: 0.0032 + 0.0006 * num_rows, chance=never)
    planner = Planner()
    play(world, "auto", 200, 8, planner)
    policies = [planner.make_policy("auto", 0.0) for _ in range(8)]
    num_tries = 0
    for _ in range(160):
        tried = [wish.runs_drafter for wish in planner.plan(policies, max_rows=64)]
        assert sum(tried) <= 1
        num_tries += any(tried)
    assert num_tries <= 160 // PROBE_SPACING


def test_tries_that_keep_failing_become_rare() -> None:
    """Guards streams in a row that each find out the same anew."""
    world = World(lambda num_rows: 0.01 + 0.0002 * num_rows, chance=never)
    planner = Planner()
    play(world, "auto", 200, 8, planner)
    lengths = [length for _ in range(4) for length in play_all(world, 50, planner)]
    assert 1 <= sum(length > 0 for length in lengths) <= 200 // (4 * PROBE_SPACING)


def test_tries_that_stand_and_do_not_pay_become_rare() -> None:
    """Guards hurrying on because a try stood: with eight streams even that may be no gain."""
    planner = Planner()
    world = World(lambda num_rows: 0.0024 + 0.0006 * num_rows, chance=lambda rng, time: 0.75)
    play(world, "auto", 400, 8, planner)
    num_before = planner.experiences[0].num_looks
    play(world, "auto", 640, 8, planner)
    assert planner.rests
    assert planner.experiences[0].num_looks - num_before <= 640 // (4 * PROBE_SPACING)


def rounds_until_a_try(
    planner: Planner, policies: Sequence[Policy]
) -> tuple[int, Policy, DraftPlan]:
    """Let nobody draft until somebody tries; return after how many rounds, who, and what."""
    for num_rounds in range(1, 2000):
        wishes = planner.plan(policies, max_rows=64)
        for policy, wish in zip(policies, wishes, strict=True):
            if wish.runs_drafter:
                return num_rounds, policy, wish
        planner.costs.observe_pass(8, 0.01)
    raise AssertionError("nobody tries")


def test_dear_tries_are_rare_and_made_where_they_are_cheapest() -> None:
    """Guards long prompts that the head reads only to find that drafts do not pay."""
    planner = Planner()
    world = World(lambda num_rows: 0.0024 + 0.0006 * num_rows, chance=lambda rng, time: 0.75)
    play(world, "auto", 400, 8, planner)
    policies = [planner.make_policy("auto", 0.0) for _ in range(8)]
    for num_waiting, policy in zip((700, 650, 800, 90, 700, 75, 600, 900), policies, strict=True):
        policy.num_waiting = num_waiting
    _, who, wish = rounds_until_a_try(planner, policies)
    assert who is policies[5]
    planner.learn(who, wish, Draft((1,), (0.5,), ("head",)), 0, seconds=0.01)
    num_rounds, _, _ = rounds_until_a_try(planner, policies)
    assert num_rounds > 200, "it took as long as a pass"


@pytest.mark.parametrize(("num_accepted", "is_rare"), [(0, True), (2, False)])
def test_a_try_costs_its_rows_unless_they_stand(num_accepted: int, is_rare: bool) -> None:
    """Guards tries that seem cheap, since most of what they take is part of the pass."""
    planner = Planner()
    world = World(lambda num_rows: 0.0014 + 0.0007 * num_rows, chance=lambda rng, time: 0.6)
    play(world, "auto", 800, 8, planner)
    policies = [planner.make_policy("auto", 0.0) for _ in range(8)]
    _, who, wish = rounds_until_a_try(planner, policies)
    tried = Draft((1, 2), (0.5, 0.5), ("head", "head"))
    planner.learn(who, wish, tried, num_accepted, seconds=0.001)
    num_rounds, _, _ = rounds_until_a_try(planner, policies)
    assert (num_rounds > 8 * PROBE_SPACING) == is_rare


def play_all(world: World, num_rounds: int, planner: Planner) -> list[int]:
    """Return the draft tokens that eight new sequences asked for, round by round."""
    policies = [planner.make_policy("auto", 0.0) for _ in range(8)]
    asked = []
    for _ in range(num_rounds):
        wishes = planner.plan(policies, max_rows=64)
        asked.append(sum(wish.num_tokens for wish in wishes if wish.runs_drafter))
        planner.costs.observe_pass(8 + asked[-1], world.pass_s(8 + asked[-1]))
        for policy, wish in zip(policies, wishes, strict=True):
            if not wish.runs_drafter:
                continue
            refused = Draft((0,) * wish.num_tokens, (0.9,) * wish.num_tokens)
            planner.learn(policy, wish, refused, 0)
    return asked


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Planner]:
    """Planners that have made a plan, once for each."""
    made: list[Planner] = []
    decide = Planner._decide

    def note(self: Planner, *args: Any) -> None:
        made.append(self)
        decide(self, *args)

    monkeypatch.setattr(Planner, "_decide", note)
    return made


def test_resting_plan_is_kept_until_a_try_brings_news(plans: list[Planner]) -> None:
    """Guards planning for its own sake: it costs as much as a stream's sampling."""
    planner = Planner()
    play(DEAR, "auto", 500, 8, planner)
    assert planner.rests
    assert len(plans) <= 12 + 500 // MAX_REST_ROUNDS
    plans.clear()
    policies = [planner.make_policy("auto", 0.0) for _ in range(8)]
    for _ in range(40):  # one after the other ends, and somebody else begins
        for _ in range(8):
            planner.plan(policies, max_rows=64)
            planner.costs.observe_pass(8, DEAR.pass_s(8))
        assert all(one.off_reason is not None for one in policies), "newcomers are told why"
        policies = [*policies[1:], planner.make_policy("auto", 0.0)]
    assert len(plans) <= 7 + 320 // MAX_REST_ROUNDS  # every 1, 2, 4 … rounds at first


@pytest.mark.parametrize("num_accepted", [0, 1])
def test_a_try_is_news_only_if_it_stood(plans: list[Planner], num_accepted: int) -> None:
    planner = Planner()
    play(World(lambda num_rows: 0.0024 + 0.0006 * num_rows, chance=never), "auto", 800, 8, planner)
    policies = [planner.make_policy("auto", 0.0) for _ in range(8)]
    _, who, wish = rounds_until_a_try(planner, policies)
    plans.clear()
    planner.learn(who, wish, Draft((1, 2), (0.5, 0.5), ("head", "head")), num_accepted)
    planner.plan(policies, max_rows=64)
    assert len(plans) == num_accepted


def test_resting_plan_does_not_outlive_those_it_was_made_for() -> None:
    """Guards one request of poor drafts that would keep the next one from drafting, too."""
    planner = Planner()
    poor = World(lambda num_rows: 0.0025 + 0.0005 * num_rows, chance=never, says=lambda _: 0.95)
    good = World(poor.pass_s, chance=lambda rng, time: 0.95)
    play(good, "auto", 1000, 1, planner)
    play(poor, "auto", 60, 1, planner)
    assert planner.rests
    policy = planner.make_policy("auto", 0.0)
    (wish,) = planner.plan([policy], max_rows=64)
    assert wish.num_tokens > 0, policy.explain()


def test_another_kind_of_request_gets_a_plan_of_its_own() -> None:
    planner = Planner()
    play(World(dear_pass, chance=never), "auto", 300, 8, planner)
    policies = [planner.make_policy("auto", 0.0) for _ in range(8)]
    for _ in range(4):
        planner.plan(policies, max_rows=64)
    warm = planner.make_policy("auto", 0.7)
    rest = planner._rest
    planner.plan([*policies, warm], max_rows=64)
    assert planner._rest is not rest
    assert warm.is_decided
