import asyncio
from dataclasses import replace

import pytest

from headlong.fleet import probe
from headlong.fleet.dialect import Feature
from headlong.fleet.probe_sides import Budget, NotChecked
from headlong.fleet.verdict import Aspect, Judgement, Outcome, Verdict
from scripted_sides import TOKENIZER, ScriptedSide, liar

PLAIN = ScriptedSide()


@pytest.fixture(autouse=True)
def _few_questions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no more than it takes, where it is not about all questions."""
    if request.function is not test_an_honest_engine_passes_every_check:
        monkeypatch.setattr(probe, "PROMPTS", dict(list(probe.PROMPTS.items())[:4]))


def examine(
    drafting: ScriptedSide, plain: ScriptedSide | None = PLAIN, budget: Budget | None = None
) -> dict[Aspect, Judgement]:
    return {one.aspect: one for one in verdict_on(drafting, plain, budget).judgements}


def verdict_on(
    drafting: ScriptedSide, plain: ScriptedSide | None = PLAIN, budget: Budget | None = None
) -> Verdict:
    budget = budget or Budget()
    other = None if plain is None else plain.side(budget, is_plain=True)
    return asyncio.run(probe.probe(drafting.side(budget, is_plain=False), other, TOKENIZER))


def outcomes(judged: dict[Aspect, Judgement]) -> dict[Aspect, Outcome]:
    return {aspect: one.outcome for aspect, one in judged.items()}


def test_an_honest_engine_passes_every_check() -> None:
    judged = examine(liar())
    assert outcomes(judged) == dict.fromkeys(probe.CHECKS, Outcome.PASSED), judged


@pytest.mark.parametrize(
    ("lie", "aspect"),
    [
        ("wrong", Aspect.GREEDY),
        ("uniform", Aspect.SAMPLED),
        ("greedy", Aspect.SAMPLED),
        ("mixed", Aspect.MIXED),
        ("long", Aspect.LENGTH),
        ("deaf", Aspect.STOP),
        ("unformed", Aspect.JSON),
        ("unformed", Aspect.GRAMMAR),
        ("wrong logprobs", Aspect.LOGPROBS),
        ("fail", Aspect.GREEDY),
    ],
)
def test_a_lie_fails_the_check_it_concerns(lie: str, aspect: Aspect) -> None:
    assert examine(liar(lie))[aspect].outcome is Outcome.FAILED


@pytest.mark.parametrize("lie", ["uniform", "greedy", "mixed", "wrong logprobs"])
def test_other_checks_pass_beside_a_lie(lie: str) -> None:
    failed = [one.aspect for one in verdict_on(liar(lie)).failed]
    assert failed in ([Aspect.SAMPLED], [Aspect.MIXED], [Aspect.LOGPROBS])


def test_a_wrong_token_is_told_with_its_place_and_what_it_lags() -> None:
    seen = examine(liar("wrong"))[Aspect.GREEDY]
    assert seen.numbers["worst_lag"] == pytest.approx(0.875, abs=1e-3)  # of shares 0.6 and 0.25
    assert "Token 9 " in seen.seen or "Token 25 " in seen.seen or "Token 41 " in seen.seen


def test_near_ties_are_not_exact_and_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine in bfloat16 may turn a near-tie over; that is no reason to route around it."""
    monkeypatch.setattr("scripted_model.SHARES", (0.4, 0.35, 0.2))
    verdict = verdict_on(liar("wrong"))
    judged = {one.aspect: one for one in verdict.judgements}[Aspect.GREEDY]
    assert judged.outcome is Outcome.NOT_EXACT
    assert verdict.problem is None


def test_rounded_logprobs_are_not_exact() -> None:
    assert examine(liar("rounds"))[Aspect.LOGPROBS].outcome is Outcome.NOT_EXACT


def test_a_seed_that_is_not_kept_is_said() -> None:
    judged = examine(liar("seedless"))
    assert judged[Aspect.SEED].outcome is Outcome.NOT_EXACT
    assert judged[Aspect.SAMPLED].outcome is Outcome.PASSED


def test_a_seed_with_noise_of_its_own_is_said() -> None:
    judged = examine(liar("other noise"))
    assert "without drafts it gives another" in judged[Aspect.SEED].seen


def test_an_engine_that_drafts_nothing_is_not_called_checked() -> None:
    assert "drafted nothing" in examine(liar("no drafts"))[Aspect.DRAFTS].seen
    assert examine(liar("silent"))[Aspect.DRAFTS].outcome is Outcome.NOT_CHECKED


def test_what_the_drafting_engine_lacks_is_not_checked() -> None:
    """Silence about a check that was left out would read as a pass."""
    lacking = replace(liar(), lacks=frozenset({Feature.GRAMMAR, Feature.LOGPROBS}))
    judged = examine(lacking)
    for aspect in (Aspect.JSON, Aspect.GRAMMAR, Aspect.LOGPROBS):
        assert judged[aspect].outcome is Outcome.NOT_CHECKED
        assert "while it drafts" in judged[aspect].seen


def test_without_prompt_scores_tokens_are_scored_one_by_one() -> None:
    plain = ScriptedSide(lacks=frozenset({Feature.PROMPT_LOGPROBS}))
    judged = examine(liar("uniform"), plain)
    assert judged[Aspect.SAMPLED].outcome is Outcome.FAILED
    assert judged[Aspect.LOGPROBS].outcome is Outcome.PASSED


def test_tokens_that_cannot_be_scored_are_left_out_of_samples() -> None:
    """Some engines say nothing where their best token ends the text."""
    moody = ScriptedSide(frozenset({"moody"}), lacks=frozenset({Feature.PROMPT_LOGPROBS}))

    async def score(*, may_skip: bool) -> int:
        side = moody.side(Budget(), is_plain=True)
        return len(await side.score((1, 2), range(3, 63), may_skip=may_skip))

    assert asyncio.run(score(may_skip=True)) == 10  # of 15 that are asked
    with pytest.raises(NotChecked):
        asyncio.run(score(may_skip=False))


def test_without_any_scores_differences_are_not_judged() -> None:
    blind = ScriptedSide(lacks=frozenset({Feature.PROMPT_LOGPROBS, Feature.LOGPROBS}))
    judged = examine(liar("wrong"), blind)
    assert judged[Aspect.GREEDY].outcome is Outcome.NOT_CHECKED
    assert "answers differ" in judged[Aspect.GREEDY].seen
    assert judged[Aspect.SAMPLED].outcome is Outcome.NOT_CHECKED


def test_faults_that_both_engines_have_blame_neither() -> None:
    judged = examine(liar("deaf", "long"), ScriptedSide(frozenset({"deaf", "long"})))
    assert judged[Aspect.STOP].outcome is Outcome.NOT_CHECKED
    assert judged[Aspect.LENGTH].outcome is Outcome.NOT_CHECKED


def test_a_plain_engine_that_fails_blames_nobody() -> None:
    verdict = verdict_on(liar(), ScriptedSide(frozenset({"fail"})))
    assert not verdict.failed
    assert "The plain engine failed" in verdict.judgements[0].seen


def test_a_plain_engine_that_is_gone_excuses_nothing() -> None:
    """One that answers badly too is an excuse; one that says nothing is none."""
    gone = ScriptedSide(frozenset({"gone"}))
    assert examine(liar("long"), gone)[Aspect.LENGTH].outcome is Outcome.FAILED
    assert not verdict_on(liar(), gone).failed


def test_without_a_plain_engine_only_its_own_words_are_checked() -> None:
    judged = examine(liar("unformed"), None)
    assert judged[Aspect.GREEDY].outcome is Outcome.NOT_CHECKED
    assert judged[Aspect.SAMPLED].outcome is Outcome.NOT_CHECKED
    assert judged[Aspect.LENGTH].outcome is Outcome.PASSED
    assert judged[Aspect.JSON].outcome is Outcome.FAILED


def test_tokens_of_a_probe_are_bounded() -> None:
    budget = Budget(num_tokens=3000)
    judged = examine(liar(), budget=budget)
    assert budget.num_taken <= 3000
    assert judged[Aspect.GREEDY].outcome is Outcome.PASSED
    assert "used up" in judged[Aspect.SAMPLED].seen


def test_time_of_a_probe_is_bounded() -> None:
    verdict = verdict_on(liar("stall"), budget=Budget(seconds=0.2))
    assert verdict.seconds < 5
    assert {one.outcome for one in verdict.judgements} == {Outcome.NOT_SETTLED}


def test_a_probe_that_ends_too_soon_leaves_sampling_open() -> None:
    """A slow machine passed for an honest one."""
    wrong, budget = liar("uniform"), Budget(num_tokens=3000)
    assert examine(wrong, budget=budget)[Aspect.SAMPLED].outcome is Outcome.NOT_SETTLED
    alone = examine(wrong, None, Budget(num_tokens=3000))
    assert alone[Aspect.SAMPLED].outcome is Outcome.NOT_CHECKED  # nobody to compare with


def test_plain_answers_are_asked_without_drafts() -> None:
    """One engine may be both sides, where each request says how much is drafted."""
    plain, drafting = ScriptedSide(), liar()
    verdict_on(drafting, plain)
    assert {request.mtp for request in plain.requests} == {"off"}
    assert {request.mtp for request in drafting.requests} == {"auto"}
