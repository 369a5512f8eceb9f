"""llama.cpp's dialect against what b11434 really answered."""

import json
from typing import Any

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.request import FinishReason
from headlong.errors import EngineError, GarbledError, RequestError
from headlong.fleet.dialect import Delta, Feature
from headlong.fleet.llama_cpp_dialect import LlamaCppDialect
from headlong.text.output_constraint import read_constraint
from recorded_answers import Recorded, read_all
from tiny_text import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
LLAMA = LlamaCppDialect(TOKENIZER)
GREEDY = Request((1, 2, 3), stopping=StopParams(max_tokens=8), eos_ids=frozenset({2}))


def asked(request: Request) -> dict[str, Any]:
    """Return the body for a request."""
    return dict(LLAMA.write(request, "backbone").body)


def read(*events: dict[str, Any], request: Request = GREEDY) -> Delta:
    """Return what events bring."""
    return read_all(LLAMA.reader(request), [json.dumps(one) for one in events])


def token(text: str, *ids: int, so_far: int) -> dict[str, Any]:
    """Return an event in the middle of a stream."""
    return {"index": 0, "content": text, "tokens": ids, "stop": False, "tokens_predicted": so_far}


def end(kind: str, so_far: int) -> dict[str, Any]:
    """Return the last event of a stream."""
    return {
        "content": "",
        "tokens": [],
        "stop": True,
        "stop_type": kind,
        "tokens_predicted": so_far,
    }


def test_its_own_defaults_are_overruled() -> None:
    sampling = SamplingParams(temperature=0.7, seed=2**40, repetition_penalty=1.2)
    body = asked(Request((1, 2), sampling, StopParams(max_tokens=9)))
    neutral = {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 0.7, "repeat_penalty": 1.2}
    assert {name: body[name] for name in neutral} == neutral
    assert body["n_predict"] == 9
    assert body["repeat_last_n"] == 11
    assert body["samplers"][:2] == ("penalties", "temperature")
    assert 0 <= body["seed"] < 2**32 - 1


def test_what_it_does_otherwise_is_missing() -> None:
    eos = frozenset({2})
    lacking = {
        Feature.IGNORE_EOS: Request((1,), stopping=StopParams(ignore_eos=True)),
        Feature.MIN_TOKENS: Request((1,), SamplingParams(min_tokens=3), eos_ids=eos),
        Feature.PENALTIES: Request((1,), SamplingParams(presence_penalty=1)),
        Feature.PROMPT_LOGPROBS: Request((1,), prompt_logprobs=0),
        Feature.CACHE_SALT: Request((1,), cache_salt="s"),
    }
    for need, request in lacking.items():
        assert LLAMA.missing(request, with_drafts=False) is need
    logprobs = Request((1,), SamplingParams(logprobs=0))
    assert LLAMA.missing(logprobs, with_drafts=False) is None
    assert LLAMA.missing(logprobs, with_drafts=True) is Feature.LOGPROBS


def test_schemas_go_without_our_way_of_writing() -> None:
    grammar = read_constraint({"response_format": {"type": "json_object"}}).make_grammar(TOKENIZER)
    assert asked(Request((1,), grammar=grammar))["json_schema"] == {"type": "object"}


@pytest.mark.parametrize("engine", ["llama.cpp-plain", "llama.cpp-speculating"])
def test_a_recorded_stream_is_read(engine: str) -> None:
    recorded = Recorded(engine, "stream")
    answer = read_all(LLAMA.reader(GREEDY), recorded.events)
    whole = json.loads(Recorded(engine, "answer").body)
    assert list(answer.token_ids) == whole["tokens"]
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.is_end
    assert (answer.stats is None) == (engine == "llama.cpp-plain")


def test_logprobs_come_in_one_answer() -> None:
    request = Request((1,), SamplingParams(logprobs=0), StopParams(max_tokens=6))
    assert asked(request)["stream"] is False
    answer = read_all(LLAMA.reader(request), Recorded("llama.cpp-plain", "logprobs").events)
    assert len(answer.token_ids) == 6
    assert [one.token_id for one in answer.logprobs] == list(answer.token_ids)
    assert {one.top for one in answer.logprobs} == {()}


def test_any_of_its_ends_is_ours() -> None:
    """It ended a grammar with <|endoftext|>, which our model does not name as an end."""
    answer = read_all(LLAMA.reader(GREEDY), Recorded("llama.cpp-plain", "end of text").events)
    assert answer.token_ids == (82, 2)
    assert answer.finish_reason is FinishReason.STOP


def test_silent_tokens_in_the_middle_are_kept() -> None:
    answer = read(token("", 7, so_far=1), token("b", 8, so_far=2), end("limit", 2))
    assert answer.token_ids == (7, 8)


def test_tokens_within_a_character_are_spelled() -> None:
    """Its stream tells only the last token of a character, and the text of all of them."""
    ids = TOKENIZER.encode("é漢", add_special=False)
    assert len(ids) == 5
    events = [token("é", ids[1], so_far=2), token("漢", ids[4], so_far=5), end("limit", 5)]
    assert list(read(*events).token_ids) == ids


def test_an_answer_cut_within_a_character_keeps_its_length() -> None:
    answer = read(token("h", 8, so_far=1), end("limit", 3))
    assert len(answer.token_ids) == 3
    assert TOKENIZER.decode(answer.token_ids[1:]) == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "event",
    [
        {"content": "a", "tokens": [5]},
        token("a", 5, so_far=9),
        end("word", 0),
        end("limit", 40),
        {**end("limit", 0), "timings": {"draft_n": 1, "draft_n_accepted": 2}},
        {**end("limit", 0), "stop": "yes"},
    ],
)
def test_garbled_events_are_refused(event: dict[str, Any]) -> None:
    with pytest.raises(GarbledError):
        read(event)


def test_errors_are_told_from_refusals() -> None:
    too_long = Recorded("llama.cpp-plain", "too long")
    assert type(LLAMA.refusal(too_long.status, too_long.body.encode())) is RequestError
    with pytest.raises(EngineError):
        read({"error": {"code": 500, "message": "compute failed"}})


def test_metrics_tell_the_load() -> None:
    load = LLAMA.read_load(Recorded("llama.cpp-speculating", "/metrics").body)
    assert (load.num_running, load.num_drafted, load.num_accepted) == (0, 662, 76)
