"""From bodies to engine requests: defaults, seeds, limits, refusals with both numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headlong.engine.request import FinishReason
from headlong.errors import RequestError
from headlong.generation import Chunk
from headlong.llm import LLM
from headlong.server.chat import prepare_chat
from headlong.server.chat_protocol import ChatBody
from headlong.server.completions import CompletionBody, prepare_completion
from headlong.server.preparation import PreparedAnswer
from headlong.server.refusal import ApiError, refusal_for
from headlong.server.service import Service
from headlong.weights.catalog import CATALOG
from served_model import make_model_app

SAID = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def llm(tiny_model_path: Path) -> LLM:
    """The tiny model."""
    return LLM.load(tiny_model_path, backend="numpy")


@pytest.fixture
def service(llm: LLM) -> Service:
    """A server that has not been started."""
    return make_service(llm)


def make_service(llm: LLM, **settings: Any) -> Service:
    service: Service = make_model_app(llm, **settings).state.service
    return service


def chat(service: Service, **fields: Any) -> PreparedAnswer:
    """Prepare a chat answer."""
    body = {"messages": [SAID], **fields}
    return prepare_chat(service, ChatBody.model_validate(body), "auto")


def completion(service: Service, **fields: Any) -> PreparedAnswer:
    """Prepare a plain completion."""
    body = {"prompt": "hello", **fields}
    return prepare_completion(service, CompletionBody.model_validate(body), "off")


def refusal(service: Service, **fields: Any) -> ApiError:
    """Prepare what must be refused."""
    with pytest.raises(ApiError) as caught:
        (completion if "prompt" in fields else chat)(service, **fields)
    assert caught.value.refusal.status == 400
    return caught.value


def test_defaults_are_openai_s(service: Service) -> None:
    (choice,) = chat(service).choices
    room = service.context_length - len(choice.request.prompt_ids)
    assert choice.request.sampling.temperature == 1.0
    assert choice.request.sampling.top_p == 1.0
    assert choice.request.stopping.max_tokens == room
    assert choice.request.mtp == "auto"
    (choice,) = completion(service).choices
    assert choice.request.stopping.max_tokens == 16
    assert choice.request.mtp == "off"


def test_seeds_follow_one_another_and_wrap(service: Service) -> None:
    seeds = [choice.request.sampling.seed for choice in chat(service, n=3, seed=-2).choices]
    assert seeds == [2**64 - 2, 2**64 - 1, 0]
    drawn = {chat(service).choices[0].request.sampling.seed for _ in range(5)}
    assert len(drawn) == 5


def test_options_reach_the_request(service: Service) -> None:
    (choice,) = chat(
        service,
        stop="x",
        top_k=-1,
        min_p=0.1,
        logit_bias={"7": -5},
        logprobs=True,
        max_completion_tokens=9,
        presence_penalty=0.5,
    ).choices
    sampling, stopping = choice.request.sampling, choice.request.stopping
    assert (sampling.top_k, sampling.min_p, sampling.presence_penalty) == (0, 0.1, 0.5)
    assert sampling.logit_bias == {7: -5}
    assert sampling.logprobs == 0
    assert (stopping.stop, stopping.max_tokens) == (("x",), 9)


def test_prompts_and_choices_are_numbered_through(service: Service) -> None:
    prepared = completion(service, prompt=["hello", "he"], n=2)
    assert prepared.num_prompts == 2
    prompts = [choice.request.prompt_ids for choice in prepared.choices]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    end = Chunk("", (1,), False, "backbone", 0, None, FinishReason.STOP)
    assert [writer.whole([end])["index"] for writer in prepared.writers] == [0, 1, 2, 3]


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
def test_token_ids_are_taken_as_they_are(service: Service, prompt: Any) -> None:
    assert completion(service, prompt=prompt).choices[0].request.prompt_ids == (5, 6, 7)


def test_long_prompt_is_refused_with_both_numbers(service: Service) -> None:
    error = refusal(service, prompt="x" * 1000).refusal
    assert error.code == "context_length_exceeded"
    assert "1000 tokens" in error.message
    assert str(service.context_length) in error.message


def test_server_s_own_limits_are_named(llm: LLM) -> None:
    error = refusal(make_service(llm, max_prompt_tokens=4), prompt="x" * 9).refusal
    assert "9 tokens" in error.message
    assert "at most 4" in error.message


def test_memory_bounds_the_answer(llm: LLM) -> None:
    roomy = make_service(llm, kv_bytes=2**20)
    (choice,) = completion(roomy, max_tokens=10_000).choices
    assert len(choice.request.prompt_ids) + choice.request.stopping.max_tokens == min(
        roomy.max_sequence_tokens, roomy.context_length
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [999999]}, "prompt"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, "echo"),
    ],
)
def test_what_no_schema_can_say_is_refused(
    service: Service, fields: dict[str, Any], param: str
) -> None:
    assert refusal(service, **fields).refusal.param == param


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a tool of a request."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def schema_format(**fields: Any) -> dict[str, Any]:
    """Return a response format that demands JSON."""
    return {"type": "json_schema", "json_schema": {"name": "x", **fields}}


ODD = {"type": "object", "properties": {"a": {"type": "string", "format": "colour"}}}
LONG = {"type": "object", "properties": {"a": {"const": "x" * 5000}}}
LOOP = {"$ref": "#"}
NAMED = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name"),
        ({"tools": [tool("f", {"type": "array"})]}, "tools[0].function.parameters"),
        (
            {"tools": [tool("f"), tool("g", ODD)], "tool_choice": "required"},
            "tools[1].function.parameters",
        ),
        (
            {"tools": [tool("f"), tool("g", ODD)], "tool_choice": NAMED},
            "tools[1].function.parameters",
        ),
        ({"tools": [tool("f")], "tool_choice": NAMED}, "tool_choice"),
        ({"response_format": schema_format()}, "response_format.json_schema.schema"),
        ({"response_format": schema_format(schema=ODD)}, "response_format.json_schema.schema"),
        ({"response_format": schema_format(schema=LONG)}, "response_format.json_schema.schema"),
        ({"response_format": schema_format(schema=LOOP)}, "response_format.json_schema.schema"),
        ({"messages": [{**SAID, "content": "half \ud800"}]}, "messages"),
        ({"prompt": "half \ud800"}, "prompt"),
    ],
)
def test_refusals_from_below_name_the_field(
    service: Service, fields: dict[str, Any], param: str
) -> None:
    """Clients show it beside the message; agents with many tools need it."""
    try:
        (completion if "prompt" in fields else chat)(service, **fields)
        pytest.fail("was not refused")
    except ApiError as error:
        told = error.refusal
    except RequestError as error:
        told = refusal_for(error)
    assert (told.status, told.param, told.code) == (400, param, "invalid_value")


def test_text_that_is_surely_too_long_is_refused_unread(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the others: counting the tokens of megabytes takes the text thread seconds."""

    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError("was read")

    tokenizer = service.model.tokenizer
    monkeypatch.setattr(tokenizer, "encode", refuse)
    text = "x" * 100 * service.max_prompt_tokens
    assert tokenizer.min_num_tokens(text) > service.max_prompt_tokens
    for fields in ({"prompt": text}, {"messages": [{"role": "user", "content": text}]}):
        told = refusal(service, **fields).refusal
        assert told.code == "context_length_exceeded"
        assert f"at most {service.max_prompt_tokens}" in told.message


def test_earlier_answer_may_be_empty(service: Service) -> None:
    for answer in ({"role": "assistant"}, {"role": "assistant", "content": None}):
        assert chat(service, messages=[SAID, answer, SAID]).choices


def test_wishes_for_tools_that_are_not_there_are_named(service: Service) -> None:
    warnings = chat(service, parallel_tool_calls=False, tool_choice="auto").warnings
    assert [warning.partition(" ")[0] for warning in warnings] == [
        "tool_choice",
        "parallel_tool_calls",
    ]
    tool = {"type": "function", "function": {"name": "look"}}
    assert not chat(service, tools=[tool], parallel_tool_calls=False, tool_choice="auto").warnings


def test_schema_that_is_followed_in_part_is_a_warning(service: Service) -> None:
    (warning,) = chat(service, tools=[tool("f"), tool("g", ODD)]).warnings
    assert warning.startswith("Tool 'g' is followed only in part at /properties/a/format: Unknown")


def test_more_answers_than_could_ever_wait_are_refused(llm: LLM) -> None:
    """Guards a client that is told to come back later, for ever."""
    service = make_service(llm, max_running=2, max_waiting=1)
    assert len(chat(service, n=3).choices) == 3
    assert "asks for 4 answers at one time; this server holds 3" in str(refusal(service, n=4))
    assert refusal(service, prompt=["a", "b"], n=2).refusal.param == "prompt"


def test_foreign_model_is_a_404(service: Service) -> None:
    with pytest.raises(ApiError) as caught:
        chat(service, model="gpt-4")
    assert caught.value.refusal.status == 404
    assert "tiny" in caught.value.refusal.message
    for name in ("tiny", "tiny.gguf", "default"):
        assert chat(service, model=name).choices
    with pytest.raises(ApiError):
        chat(service, model="smollm2")


def test_every_name_the_catalogue_has_for_the_served_model_is_it(service: Service) -> None:
    path = Path("models") / CATALOG[0].file_name
    known = replace(service, model=replace(service.model, path=path))
    for name in (CATALOG[0].name, *CATALOG[0].aliases, "SmolLM2"):
        assert chat(known, model=name).choices
    with pytest.raises(ApiError):
        chat(known, model=CATALOG[1].name)


@pytest.mark.parametrize("prompt", ["a", [1, 2]])
def test_too_many_prompts_are_called_so(service: Service, prompt: Any) -> None:
    assert len(completion(service, prompt=[prompt] * 64).choices) == 64
    refused = refusal(service, prompt=[prompt] * 65).refusal
    assert refused.param == "prompt"
    assert refused.message == "prompt is a list of 65 prompts. It may have at most 64."


def test_grammar_is_there_when_the_form_is_given(service: Service) -> None:
    assert chat(service).choices[0].request.grammar is None
    assert chat(service, response_format={"type": "text"}).choices[0].request.grammar is None
    wanted = {"type": "json_object"}
    assert chat(service, response_format=wanted).choices[0].request.grammar is not None
    tool = {"type": "function", "function": {"name": "look"}}
    assert chat(service, tools=[tool]).choices[0].request.grammar is not None
    hidden = chat(service, tools=[tool], tool_choice="none").choices[0].request
    assert hidden.grammar is None
    assert hidden.prompt_ids == chat(service).choices[0].request.prompt_ids
