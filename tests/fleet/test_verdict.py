import pytest

from headlong.config import SamplingParams
from headlong.decode.request import Request
from headlong.fleet.verdict import Aspect, Judgement, Outcome, Verdict
from headlong.text.grammar import compile_user_grammar, json_schema_grammar
from tiny_text import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
JSON = json_schema_grammar(TOKENIZER, {"type": "object"})
PATTERN = compile_user_grammar(TOKENIZER, "%llguidance {}\nstart: /[0-9]/", None)
REQUESTS = {
    "greedy": Request((1,)),
    "greedy by top_p": Request((1,), SamplingParams(temperature=0.7, top_p=0.0)),
    "sampled": Request((1,), SamplingParams(temperature=0.7)),
    "logprobs": Request((1,), SamplingParams(logprobs=0)),
    "json": Request((1,), grammar=JSON),
    "pattern": Request((1,), grammar=PATTERN),
}


def blocked_by(aspect: Aspect, outcome: Outcome = Outcome.FAILED) -> list[str]:
    verdict = Verdict(0.0, (Judgement(aspect, outcome, "Seen."),))
    return [name for name, request in REQUESTS.items() if verdict.blocks(request) is not None]


@pytest.mark.parametrize("aspect", [Aspect.GREEDY, Aspect.LENGTH, Aspect.STOP])
def test_what_all_need_blocks_all(aspect: Aspect) -> None:
    assert blocked_by(aspect) == list(REQUESTS)
    assert Verdict(0.0, (Judgement(aspect, Outcome.FAILED, "Seen."),)).problem is not None


@pytest.mark.parametrize(
    ("aspect", "blocked"),
    [
        (Aspect.SAMPLED, ["sampled"]),
        (Aspect.MIXED, ["sampled"]),
        (Aspect.LOGPROBS, ["logprobs"]),
        (Aspect.JSON, ["json"]),
        (Aspect.GRAMMAR, ["pattern"]),
        (Aspect.SEED, []),
    ],
)
def test_one_failure_blocks_who_needs_it(aspect: Aspect, blocked: list[str]) -> None:
    assert blocked_by(aspect) == blocked
    assert Verdict(0.0, (Judgement(aspect, Outcome.FAILED, "Seen."),)).problem is None


def test_a_sampled_request_is_told_of_samples_first() -> None:
    """That greedy ones would suffer beside it is the smaller reason."""
    both = (Aspect.MIXED, Aspect.SAMPLED)
    verdict = Verdict(0.0, tuple(Judgement(one, Outcome.FAILED, "Seen.") for one in both))
    reason = verdict.blocks(REQUESTS["sampled"])
    assert reason == "Its sampled text with drafts failed the probe: Seen."


def test_what_is_not_settled_blocks_who_needs_it() -> None:
    """A probe that ran out of time let sampled requests through to a wrong sampler."""
    assert blocked_by(Aspect.SAMPLED, Outcome.NOT_SETTLED) == ["sampled"]
    assert blocked_by(Aspect.GREEDY, Outcome.NOT_SETTLED) == list(REQUESTS)
    assert blocked_by(Aspect.SEED, Outcome.NOT_SETTLED) == []


@pytest.mark.parametrize("outcome", [Outcome.NOT_CHECKED, Outcome.NOT_SETTLED])
def test_what_an_earlier_probe_found_stands_where_a_later_one_found_nothing(
    outcome: Outcome,
) -> None:
    """A fault was forgotten when the plain engine was down an hour later."""
    failed = Judgement(Aspect.SAMPLED, Outcome.FAILED, "-3.96 against -1.08.")
    found, nothing = (
        Judgement(Aspect.JSON, one, "Seen.") for one in (Outcome.PASSED, Outcome.NOT_CHECKED)
    )
    later = Verdict(1.0, (Judgement(Aspect.SAMPLED, outcome, "No plain engine."), found))
    assert later.completed_by(Verdict(0.0, (failed, nothing))).judgements == (failed, found)


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.NOT_EXACT, Outcome.NOT_CHECKED])
def test_other_outcomes_block_no_requests(outcome: Outcome) -> None:
    assert not [aspect for aspect in Aspect if blocked_by(aspect, outcome)]


def test_blocked_requests_are_told_what_was_seen() -> None:
    verdict = Verdict(0.0, (Judgement(Aspect.SAMPLED, Outcome.FAILED, "-3.96 against -1.08."),))
    assert "-3.96 against -1.08." in (verdict.blocks(REQUESTS["sampled"]) or "")
