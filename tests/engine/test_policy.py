"""The policy of one request: obeys what was asked, probes while off, says why."""

from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.engine.chances import MAX_AUTO_TOKENS, Look
from headlong.engine.policy import (
    FIRST_PROBE,
    HOPELESS_INTERVAL,
    LOOK_INTERVAL,
    MAX_PROBE_INTERVAL,
    REACH,
    REST,
    Decision,
    Policy,
    Prospect,
    within,
)

THRESHOLDS = {"head": Threshold(0.2, 0.4)}


def decision(num_tokens: int, *, is_hopeless: bool = False) -> Decision:
    """Return a decision with a prospect one can recognise."""
    prospect = Prospect(3, 2.5, 0.020, 0.010, 1.25)
    return Decision(num_tokens, THRESHOLDS, is_hopeless, lambda: prospect)


def rounds_with_drafts(policy: Policy, num_rounds: int) -> list[int]:
    """Return in which rounds a policy wishes for drafts; all of them are refused."""
    found = []
    for number in range(num_rounds):
        wish = policy.wish()
        if wish.runs_drafter:
            found.append(number)
            policy.observe(Look(wish.num_tokens, 1, wish.num_tokens, 0))
    return found


def test_off_never_drafts_and_rests() -> None:
    assert Policy("off").wish() == DraftPlan(0, is_idle=True)


def test_a_number_is_obeyed_without_bars() -> None:
    assert Policy(5).wish() == DraftPlan(5)


def test_nothing_is_drafted_before_the_first_decision() -> None:
    assert rounds_with_drafts(Policy("auto"), 50) == []


def test_decision_is_followed_with_its_bars() -> None:
    policy = Policy("auto")
    policy.decide(decision(4))
    wishes = [policy.wish() for _ in range(LOOK_INTERVAL)]
    assert {wish.num_tokens for wish in wishes[:-1]} == {4}
    assert wishes[0].thresholds == THRESHOLDS
    # Now and then less sure and longer drafts are looked at, or nobody would know of them.
    assert wishes[-1].num_tokens == 5
    assert wishes[-1].thresholds["head"] == Threshold(0.1, 0.2)


def test_who_runs_alone_may_draft_further_where_bars_allow_it() -> None:
    """Else a price learned at a bad moment would keep drafts short for hundreds of rounds."""
    policy = Policy("auto")
    policy.decide(decision(4))
    assert policy.wish(is_alone=True) == DraftPlan(4 + REACH, THRESHOLDS)
    policy.decide(decision(MAX_AUTO_TOKENS))
    assert policy.wish(is_alone=True) == DraftPlan(MAX_AUTO_TOKENS, THRESHOLDS)
    policy.decide(decision(0))
    assert not policy.wish(is_alone=True).runs_drafter


def test_probes_become_rare() -> None:
    policy = Policy("auto")
    policy.decide(decision(0))
    found = rounds_with_drafts(policy, 1000)
    assert found[0] == FIRST_PROBE - 1
    assert found[-1] - found[-2] == MAX_PROBE_INTERVAL
    assert len(found) <= 12


def test_probe_that_stands_is_soon_repeated() -> None:
    policy = Policy("auto")
    policy.decide(decision(0))
    rounds_with_drafts(policy, 500)
    policy.observe(Look(2, 2, 2, 2))
    assert len(rounds_with_drafts(policy, 300)) >= 4


def test_no_probe_where_not_even_perfect_drafts_pay() -> None:
    policy = Policy("auto")
    policy.decide(decision(0, is_hopeless=True))
    assert rounds_with_drafts(policy, 1000) == [HOPELESS_INTERVAL - 1]


def test_rows_wait_only_while_no_draft_is_near() -> None:
    policy = Policy("auto")
    policy.decide(decision(0))
    assert policy.wish().is_idle
    assert policy.plain_wish().is_idle, "measuring a plain pass must not wake the drafter"
    policy.decide(decision(2))
    assert not policy.wish().is_idle
    assert policy.plain_wish() == DraftPlan(0)
    assert Policy(3).plain_wish() == DraftPlan(3)


def test_who_rests_copies_and_now_and_then_what_may_not_pay() -> None:
    policy = Policy("auto")
    policy.decide(decision(0))
    wishes = [policy.rest() for _ in range(LOOK_INTERVAL)]
    assert wishes[0] == DraftPlan(1, THRESHOLDS, is_idle=True, only_lookup=True)
    assert [wish.thresholds for wish in wishes].count(THRESHOLDS) == LOOK_INTERVAL - 1
    assert wishes[-1].thresholds["head"] == Threshold(0.1, 0.2)
    assert not any(wish.runs_drafter for wish in wishes)
    assert Policy("auto").rest() == REST, "nothing is known yet of what a row costs"


def test_rows_of_a_round_are_cut_from_the_longest_drafts() -> None:
    wishes = [DraftPlan(4), DraftPlan(0), DraftPlan(2)]
    assert [wish.num_tokens for wish in within(wishes, 64)] == [4, 0, 2]
    assert [wish.num_tokens for wish in within(wishes, 6)] == [1, 0, 2]
    assert [wish.num_tokens for wish in within(wishes, 2)] == [0, 0, 0]


def test_off_says_why() -> None:
    policy = Policy("auto")
    reasons = [policy.off_reason]
    for num_tokens in (0, 3):
        policy.decide(decision(num_tokens))
        reasons.append(policy.off_reason)
    why = "Drafting does not pay here: the best draft, K=3, would run at 1.25 ×."
    assert reasons == [None, why, None]
    assert Policy("off").off_reason is None


def test_every_state_is_explained_in_words() -> None:
    policy = Policy("auto")
    assert "Not decided yet" in policy.explain()
    policy.decide(decision(3))
    assert policy.explain() == (
        "Drafts: with K=3 a round is expected to give 2.50 tokens in 20.0 ms, "
        "without drafts one in 10.0 ms; all streams together run at 1.25 ×."
    )
    policy.decide(decision(0))
    assert policy.explain().startswith("Drafts nothing but copies of what stood before: with ")
    assert "asked for none" in Policy("off").explain()
    assert "Always drafts K=4" in Policy(4).explain()
