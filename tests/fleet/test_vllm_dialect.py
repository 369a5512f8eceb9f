"""vLLM's dialect against what vLLM 0.32 really answered, and against what it must never answer."""

import json
from typing import Any

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.request import FinishReason
from headlong.errors import BusyError, EngineError, GarbledError, RequestError
from headlong.fleet.dialect import Delta, Feature
from headlong.fleet.vllm_dialect import VllmDialect
from headlong.text.output_constraint import read_constraint
from recorded_answers import Recorded, read_all
from tiny_text import byte_level_tokenizer

VLLM = VllmDialect()
GREEDY = Request((1, 2, 3), stopping=StopParams(max_tokens=8), eos_ids=frozenset({2}))


def asked(request: Request) -> dict[str, Any]:
    """Return the body for a request."""
    return dict(VLLM.write(request, "backbone").body)


def read(name: str, request: Request = GREEDY, engine: str = "vllm-speculating") -> Delta:
    """Return what a recorded answer brings."""
    return read_all(VLLM.reader(request), Recorded(engine, name).events)


def test_every_parameter_is_written() -> None:
    sampling = SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        logit_bias={5: -3.0},
        min_tokens=4,
        seed=2**64 - 1,
        logprobs=2,
    )
    stopping = StopParams(max_tokens=9, stop=("\n",))
    request = Request((1, 2), sampling, stopping, eos_ids=frozenset({7, 2}), cache_salt="s")
    assert VLLM.missing(request, with_drafts=False) is None
    assert asked(request) == {
        "model": "backbone",
        "prompt": [1, 2],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "ignore_eos": False,
        "stop_token_ids": [2, 7],
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": -3.0},
        "min_tokens": 4,
        "seed": -1,
        "logprobs": 2,
        "return_tokens_as_token_ids": True,
        "cache_salt": "s",
    }


def test_top_p_of_zero_asks_for_the_best_token() -> None:
    request = Request((1,), SamplingParams(temperature=1, top_p=0))
    assert asked(request)["temperature"] == 0
    assert "top_p" not in asked(request)


def test_eos_that_is_ignored_stops_nothing() -> None:
    request = Request((1,), stopping=StopParams(ignore_eos=True), eos_ids=frozenset({2}))
    assert asked(request)["ignore_eos"]
    assert asked(request)["stop_token_ids"] == []


def test_min_tokens_stay_below_the_limit_and_out_of_grammars() -> None:
    """vLLM refuses more, and a grammar that must end would have no token left."""
    sampling, stopping = SamplingParams(min_tokens=20), StopParams(max_tokens=6)
    request = Request((1,), sampling, stopping, eos_ids=frozenset({2}))
    assert asked(request)["min_tokens"] == 6
    form = read_constraint({"response_format": {"type": "json_object"}})
    grammar = form.make_grammar(byte_level_tokenizer())
    held = Request((1,), sampling, stopping, eos_ids=frozenset({2}), grammar=grammar)
    assert "min_tokens" not in asked(held)


@pytest.mark.parametrize(
    ("response_format", "kind", "need"),
    [
        ({"type": "json_object"}, "json", Feature.JSON_SCHEMA),
        ({"type": "regex", "pattern": "[0-9]+"}, "grammar", Feature.GRAMMAR),
    ],
)
def test_grammars_go_as_what_they_are(
    response_format: dict[str, Any], kind: str, need: Feature
) -> None:
    grammar = read_constraint({"response_format": response_format}).make_grammar(
        byte_level_tokenizer()
    )
    assert grammar is not None
    request = Request((1,), grammar=grammar)
    assert asked(request)["structured_outputs"] == {kind: grammar.source}
    assert need in VLLM.features_with_drafts


@pytest.mark.parametrize(
    ("sampling", "need"),
    [
        (SamplingParams(logit_bias={5: 1.0}), Feature.LOGIT_BIAS),
        (SamplingParams(temperature=1, min_p=0.1), Feature.MIN_P),
    ],
)
def test_drafts_exclude_min_p_and_logit_bias(sampling: SamplingParams, need: Feature) -> None:
    request = Request((1,), sampling)
    assert VLLM.missing(request, with_drafts=True) is need
    assert VLLM.missing(request, with_drafts=False) is None


def test_filters_of_a_greedy_answer_need_nothing() -> None:
    request = Request((1,), SamplingParams(min_p=0.1, top_k=3, logit_bias={5: 0.0}))
    assert VLLM.missing(request, with_drafts=True) is None
    assert not {"min_p", "top_k", "logit_bias"} & asked(request).keys()


def test_embeddings_are_missing() -> None:
    request = Request((1,), pooling="mean")
    assert VLLM.missing(request, with_drafts=False) is Feature.EMBEDDINGS


def test_a_recorded_stream_is_read() -> None:
    answer = read("stream")
    assert len(answer.token_ids) == 8
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.is_end
    stats = answer.stats
    assert stats is not None
    assert stats.num_accepted <= stats.num_drafted
    assert stats.acceptance_length > 1
    assert stats.accepted_at_depth[0] >= stats.accepted_at_depth[-1]


def test_plain_answers_tell_no_statistics() -> None:
    answer = read("stream", engine="vllm-plain")
    assert len(answer.token_ids) == 8
    assert answer.stats is None


def test_rounds_without_drafts_are_counted() -> None:
    """A grammar left the drafter nothing to say: one round, no draft."""
    answer = read("end of text")
    assert answer.token_ids == (82, 2)
    assert answer.finish_reason is FinishReason.STOP
    assert answer.stats is not None
    assert (answer.stats.rounds, answer.stats.num_drafted) == (1, 0)


def test_logprobs_come_by_token_id() -> None:
    request = Request((1,), SamplingParams(logprobs=1), StopParams(max_tokens=6))
    answer = read("logprobs in a stream", request)
    assert [one.token_id for one in answer.logprobs] == list(answer.token_ids)
    assert all(one.top[0].logprob >= one.logprob for one in answer.logprobs)
    assert {len(one.top) for one in answer.logprobs} == {1}


def test_prompt_logprobs_come_in_one_answer() -> None:
    recorded = Recorded("vllm-speculating", "prompt logprobs")
    prompt = tuple(recorded.asked["prompt"])
    request = Request(prompt, stopping=StopParams(max_tokens=1), prompt_logprobs=0)
    assert asked(request)["stream"] is False
    answer = read_all(VLLM.reader(request), recorded.events)
    assert answer.is_end
    assert answer.prompt_logprobs is not None
    told = {place: one.token_id for place, one in answer.prompt_logprobs.items()}
    assert told == dict(list(enumerate(prompt))[1:])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("unknown token", RequestError),
        ("too long", RequestError),
        ("bad schema", RequestError),
        ("wrong type", RequestError),
        ("unknown model", EngineError),
    ],
)
def test_recorded_errors_blame_whom_they_should(name: str, kind: type[Exception]) -> None:
    recorded = Recorded("vllm-speculating", name)
    error = VLLM.refusal(recorded.status, recorded.body.encode())
    assert type(error) is kind
    assert json.loads(recorded.body)["error"]["message"][:18] in str(error)


def test_engine_of_another_kind_is_suspected_where_it_knows_no_such_path() -> None:
    error = VLLM.refusal(404, b'{"detail":"Not Found"}')
    assert "404: Not Found" in error.problem
    assert "--engine" in str(error.remedy)


def test_busy_engines_say_when_to_come_back() -> None:
    error = VLLM.refusal(503, b"", "7")
    assert isinstance(error, BusyError)
    assert error.retry_after_s == 7
    later = VLLM.refusal(429, b"<html>", "Wed, 21 Oct 2026 07:28:00 GMT")
    assert isinstance(later, BusyError)
    assert later.retry_after_s == 1


def event(**choice: object) -> str:
    """Write an event with one choice."""
    return json.dumps({"choices": [{"index": 0, "token_ids": [5], **choice}]})


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        "7",
        "[" * 100_000,
        '{"choices": 5}',
        '{"choices": [5]}',
        event(index=1),
        event(index=True),
        json.dumps({"choices": [{"index": 0}, {"index": 1}]}),
        event(token_ids="5"),
        event(token_ids=[5.0]),
        event(token_ids=[True]),
        event(token_ids=[-1]),
        event(token_ids={"0": 5}),
        event(finish_reason="tool_calls"),
        event(finish_reason=1),
        event(logprobs={"token_logprobs": [], "top_logprobs": []}),
        event(logprobs={"token_logprobs": ["-1"], "top_logprobs": [{}]}),
        event(logprobs={"token_logprobs": [float("nan")], "top_logprobs": [{}]}),
        event(logprobs={"token_logprobs": [-1.0], "top_logprobs": [{"the": -1.0}]}),
        event(logprobs={"token_logprobs": [-1.0], "top_logprobs": [[]]}),
        '{"choices": [], "usage": []}',
        '{"choices": [], "metrics": {"speculative_decoding": {"num_spec_steps": -1}}}',
        json.dumps(
            {
                "choices": [],
                "metrics": {
                    "speculative_decoding": {
                        "num_spec_steps": 1,
                        "per_step_accepted": [3],
                        "per_step_drafted": [2],
                    }
                },
            }
        ),
    ],
)
def test_garbled_events_are_refused(data: str) -> None:
    request = Request((1,), SamplingParams(logprobs=1))
    with pytest.raises(GarbledError) as caught:
        VLLM.reader(request).read(data)
    assert len(str(caught.value)) < 300


def test_failures_within_a_stream_are_told() -> None:
    with pytest.raises(EngineError, match="EngineCore died"):
        VLLM.reader(GREEDY).read('{"error": {"message": "EngineCore died", "code": 500}}')
    with pytest.raises(EngineError, match="gave the answer up"):
        VLLM.reader(GREEDY).read(event(finish_reason="abort"))


def test_metrics_tell_the_load() -> None:
    load = VLLM.read_load(Recorded("vllm-speculating", "/metrics").body)
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert (load.num_drafted, load.num_accepted) == (208, 175)
    assert load.kv_share is not None
    assert VLLM.read_load("# nothing\nodd line\n").num_running is None
