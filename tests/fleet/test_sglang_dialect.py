"""SGLang's dialect, against events written after its sources."""

import json
from typing import Any

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.request import FinishReason
from headlong.errors import EngineError, GarbledError, RequestError
from headlong.fleet.dialect import Delta, Feature
from headlong.fleet.sglang_dialect import SglangDialect
from recorded_answers import read_all

SGLANG = SglangDialect()
GREEDY = Request((1, 2, 3), stopping=StopParams(max_tokens=3), eos_ids=frozenset({2}))


def event(ids: list[int], so_far: int, finish: dict[str, Any] | None = None, **more: Any) -> str:
    """Return one event."""
    about = {"completion_tokens": so_far, "cached_tokens": 1, "finish_reason": finish, **more}
    return json.dumps({"text": "", "output_ids": ids, "meta_info": about})


def read(*events: str, request: Request = GREEDY) -> Delta:
    """Return what events bring."""
    return read_all(SGLANG.reader(request), [*events, "[DONE]"])


def test_parameters_have_its_names() -> None:
    sampling = SamplingParams(temperature=0.5, top_p=0.9, seed=2**63, min_tokens=2)
    request = Request((1,), sampling, StopParams(max_tokens=5), eos_ids=frozenset({2}))
    call = SGLANG.write(request, "backbone")
    assert call.path == "/generate"
    params = call.body["sampling_params"]
    assert (params["max_new_tokens"], params["min_new_tokens"]) == (5, 2)
    assert (params["top_k"], params["stop_token_ids"]) == (-1, [2])
    assert 0 <= params["sampling_seed"] < 2**31


def test_logprobs_of_a_warm_sampler_are_missing() -> None:
    """They are of the logits behind penalties and temperature."""
    for sampling in (
        SamplingParams(logprobs=1, temperature=0.5),
        SamplingParams(logprobs=1, presence_penalty=1),
    ):
        assert SGLANG.missing(Request((1,), sampling), with_drafts=False) is Feature.LOGPROBS
    plain = SamplingParams(logprobs=1, temperature=1)
    assert SGLANG.missing(Request((1,), plain), with_drafts=True) is None


@pytest.mark.parametrize("is_cumulative", [True, False])
def test_tokens_come_once_either_way(is_cumulative: bool) -> None:
    first, finish = [5], {"type": "length", "length": 3}
    last = [5, 6, 7] if is_cumulative else [6, 7]
    more = {"spec_verify_ct": 2, "spec_num_proposed_drafts": 4, "spec_num_correct_drafts": 1}
    answer = read(event(first, 1), event(last, 3, finish, **more))
    assert answer.token_ids == (5, 6, 7)
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.num_cached_tokens == 1
    assert answer.stats is not None
    assert (answer.stats.rounds, answer.stats.num_accepted) == (2, 1)


def test_logprobs_are_those_of_the_new_tokens() -> None:
    request = Request((1,), SamplingParams(logprobs=1))
    rows = [[-0.5, 5, None], [-0.25, 6, None]]
    tops = [[[-0.5, 5, None]], [[-0.1, 9, None], [-0.25, 6, None]]]
    events = [
        event([5], 1, output_token_logprobs=rows[:1], output_top_logprobs=tops[:1]),
        event([5, 6], 2, output_token_logprobs=rows, output_top_logprobs=tops),
    ]
    answer = read(*events, request=request)
    assert [one.logprob for one in answer.logprobs] == [-0.5, -0.25]
    assert [one.top[0].token_id for one in answer.logprobs] == [5, 9]


def test_prompt_logprobs_begin_behind_the_first() -> None:
    request = Request((1, 2, 3), stopping=StopParams(max_tokens=1), prompt_logprobs=0)
    assert SGLANG.write(request, "m").body["logprob_start_len"] == 0
    rows = [[None, 1, None], [-0.5, 2, None], [-0.75, 3, None]]
    reader = SGLANG.reader(request)
    answer = reader.read(event([5], 1, {"type": "length"}, input_token_logprobs=rows))
    assert answer.is_end
    assert answer.prompt_logprobs is not None
    assert {place: one.logprob for place, one in answer.prompt_logprobs.items()} == {
        1: -0.5,
        2: -0.75,
    }


def test_aborted_answers_say_whose_fault_it_was() -> None:
    with pytest.raises(RequestError, match="too long"):
        read(event([], 0, {"type": "abort", "status_code": 400, "message": "too long"}))
    with pytest.raises(EngineError, match="out of memory"):
        read(event([], 0, {"type": "abort", "message": "out of memory"}))


@pytest.mark.parametrize(
    "data",
    [
        event([5], 7),
        event([5], 1, {"type": "magic"}),
        event([5], 1, spec_verify_ct=1, spec_num_proposed_drafts=1, spec_num_correct_drafts=2),
        json.dumps({"output_ids": [5]}),
    ],
)
def test_garbled_events_are_refused(data: str) -> None:
    with pytest.raises(GarbledError):
        read(data)
