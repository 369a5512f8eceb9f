"""The record of one request: obeys what was asked, follows a decision, says why."""

from headlong.drafters.draft_plan import DraftPlan, Threshold
from headlong.engine.draft_policy import Candidate, DraftPolicy, limit_rows
from headlong.engine.request import bound_reason, explain, off_reason
from headlong.engine.request_policy import PROBE_TOKENS, Forecast, RequestPolicy
from headlong.engine.survival import MAX_AUTO_TOKENS

THRESHOLDS = {"head": Threshold(0.2, 0.4)}

FORECAST = Forecast(3, 2.5, 0.020, 0.010, 1.25)


def decided(num_tokens: int) -> RequestPolicy:
    """Return the record of a request for which this length was decided."""
    request = RequestPolicy("auto")
    request.decide(num_tokens, THRESHOLDS, FORECAST)
    return request


def test_off_never_drafts_and_is_idle() -> None:
    assert RequestPolicy("off").plan(is_probe=True) == DraftPlan(0, is_idle=True)


def test_a_number_is_obeyed_without_thresholds() -> None:
    assert RequestPolicy(5).plan() == DraftPlan(5)
    assert RequestPolicy(3).plan(is_plain=True) == DraftPlan(3)


def test_nothing_is_drafted_before_the_first_decision() -> None:
    assert RequestPolicy("auto").plan(is_probe=True) == DraftPlan(is_idle=True)


def test_decision_is_followed_with_its_thresholds() -> None:
    """One token further now and then, or a wrong cost would keep drafts short."""
    assert decided(4).plan() == DraftPlan(4, THRESHOLDS)
    assert decided(4).plan(is_probe=True) == DraftPlan(5, THRESHOLDS)
    assert decided(MAX_AUTO_TOKENS).plan(is_probe=True) == DraftPlan(MAX_AUTO_TOKENS, THRESHOLDS)


def test_rows_wait_only_while_no_draft_is_near() -> None:
    assert decided(0).plan().is_idle
    assert decided(0).plan(is_plain=True) == DraftPlan(is_idle=True), "no drafter need catch up"
    assert not decided(2).plan().is_idle
    assert decided(2).plan(is_plain=True) == DraftPlan()


def test_an_idle_request_looks_up_single_tokens_and_probes() -> None:
    lookup = decided(0).plan()
    assert lookup == DraftPlan(1, THRESHOLDS, is_idle=True, only_lookup=True)
    assert not lookup.runs_drafter
    assert decided(0).plan(is_probe=True) == DraftPlan(PROBE_TOKENS, is_idle=True)


def test_off_says_why() -> None:
    why = "Drafting does not pay here: the best draft, K=3, would run at 1.25 ×."
    reasons = [off_reason(one) for one in (RequestPolicy("auto"), decided(0), decided(3))]
    assert reasons == [None, why, None]
    assert off_reason(RequestPolicy("off")) is None


def test_every_state_is_explained_in_words() -> None:
    assert "Not decided yet" in explain(RequestPolicy("auto"))
    numbers = (
        "with K=3 a round is expected to give 2.50 tokens in 20.0 ms, "
        "without drafts one in 10.0 ms; all streams together run at 1.25 ×."
    )
    assert explain(decided(3)) == f"Drafts: {numbers}"
    assert explain(decided(0)) == f"Only looks up n-grams: {numbers}"
    assert "asked for none" in explain(RequestPolicy("off"))
    assert "Always drafts K=4" in explain(RequestPolicy(4))


def test_a_number_is_an_upper_bound_only_beside_others() -> None:
    alone, beside, honoured = RequestPolicy(3), RequestPolicy(3), RequestPolicy(3, honours_k=True)
    alone.enter_round(1)
    beside.enter_round(2)
    honoured.enter_round(2)
    assert alone.plan() == honoured.plan() == DraftPlan(3)
    assert [one.num_fixed for one in (alone, beside, honoured)] == [3, 0, 3]
    assert len(beside.expected().rows) == 3
    beside.decide(3, THRESHOLDS, FORECAST)
    assert beside.plan(is_probe=True) == DraftPlan(3, THRESHOLDS), "no probe goes beyond it"
    beside.enter_round(1)
    assert beside.plan() == DraftPlan(3), "alone again, it is honoured"


def test_one_token_is_the_bound_of_probes_too() -> None:
    request = RequestPolicy(1)
    request.enter_round(2)
    request.decide(0, THRESHOLDS, FORECAST)
    assert request.plan(is_probe=True) == DraftPlan(1, is_idle=True)


def test_a_bound_says_why() -> None:
    request = RequestPolicy(3)
    request.enter_round(1)
    assert bound_reason(request) is None
    request.enter_round(5)
    request.enter_round(2)
    assert "K=3 was an upper bound in the 2 rounds shared" in str(bound_reason(request))
    request.decide(0, THRESHOLDS, FORECAST)
    assert "does not pay" in str(off_reason(request))
    assert "Only looks up n-grams" in explain(request)
    request.enter_round(1)
    assert off_reason(request) is None
    assert "Always drafts K=3" in explain(request)


def test_rows_of_a_round_are_cut_from_the_longest_drafts() -> None:
    plans = [DraftPlan(4), DraftPlan(0), DraftPlan(2)]
    assert [plan.num_tokens for plan in limit_rows(plans, 64)] == [4, 0, 2]
    assert [plan.num_tokens for plan in limit_rows(plans, 6)] == [1, 0, 2]
    assert [plan.num_tokens for plan in limit_rows(plans, 2)] == [0, 0, 0]


def test_temperatures_do_not_share_what_they_have_shown() -> None:
    policy = DraftPolicy()
    cold, warm = policy.new_request("auto", 0.0), policy.new_request("auto", 0.7)
    assert cold.shared is not warm.shared
    assert policy.new_request(3, 0.7).shared is warm.shared


def test_a_request_without_a_drafter_gets_no_draft() -> None:
    policy = DraftPolicy()
    candidates = [Candidate(policy.new_request(mtp, 0.0), 0, False) for mtp in ("auto", 3)]
    assert policy.plan(candidates, max_rows=64) == [DraftPlan(is_idle=True)] * 2


def test_row_budget_shortens_the_longest_drafts() -> None:
    policy = DraftPolicy()
    candidates = [Candidate(policy.new_request(mtp, 0.0, honours_k=True)) for mtp in (8, 2, 1)]
    plans = policy.plan(candidates, max_rows=10)
    assert [plan.num_tokens for plan in plans] == [4, 2, 1]
    plans = policy.plan(candidates, max_rows=1)
    assert [plan.num_tokens for plan in plans] == [0, 0, 0], "every request keeps one row"
