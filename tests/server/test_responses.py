"""OpenAI's responses through the official client, against real server processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from jsonschema import validate  # type: ignore[import-untyped]  # it has no types
from openai import OpenAI
from pydantic import BaseModel

from headlong.server.responses_protocol import ResponsesBody
from live_server import LiveServer, serve
from openai_calls import extra

ASKED: Any = {
    "model": "default",
    "instructions": "You are brief.",
    "input": "Name three colours.",
    "max_output_tokens": 16,
    "temperature": 0,
}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
WEATHER = "What is the weather in Paris?"


class Counted(BaseModel):
    """What an answer in JSON must be."""

    n: int


@pytest.fixture(scope="module")
def client(live: LiveServer) -> OpenAI:
    """The official client, set up for the default model."""
    return live.client()


@pytest.fixture(scope="module")
def thinker(thinking_model_path: Path) -> Iterator[OpenAI]:
    """The same for a tiny model that reasons."""
    with serve(thinking_model_path, "--backend", "numpy") as server:
        yield server.client()


def streamed(client: OpenAI, **fields: Any) -> tuple[list[Any], Any]:
    """Return the events of a stream, and the response it amounts to."""
    with client.responses.stream(**fields) as stream:
        events: list[Any] = list(stream)
        return events, events[-1].response  # the client knows of complete ones only


def test_response_says_what_chat_says(client: OpenAI, live: LiveServer) -> None:
    said = {"role": "system", "content": "You are brief."}
    messages = [said, {"role": "user", "content": ASKED["input"]}]
    body = {"messages": messages, "max_tokens": 16, "temperature": 0}
    chat = live.post("/v1/chat/completions", body).json()
    response = client.responses.create(**ASKED)
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 16
    assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert extra(response)["mtp"]["rounds"] > 0


@pytest.mark.parametrize("mtp", ["off", "auto", 3])
def test_stream_builds_up_the_whole_response(client: OpenAI, mtp: Any) -> None:
    whole = client.responses.create(**ASKED)
    events, final = streamed(client, **ASKED, extra_body={"mtp": mtp})
    assert final.output_text == whole.output_text
    assert final.status == whole.status
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    done = next(event for event in events if event.type == "response.output_text.done")
    assert done.text == whole.output_text


def test_conversation_goes_on_from_an_earlier_response(client: OpenAI, live: LiveServer) -> None:
    first = client.responses.create(**ASKED)
    again: Any = {**ASKED, "input": "And two more?", "previous_response_id": first.id}
    second = client.responses.create(**again)
    by_hand = [
        {"role": "user", "content": ASKED["input"]},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And two more?"},
    ]
    assert second.output_text == client.responses.create(**{**ASKED, "input": by_hand}).output_text
    kept = client.responses.retrieve(second.id)
    assert kept.output_text == second.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="There is no response"):
        client.responses.create(**again)
    unkept = client.responses.create(**ASKED, store=False)
    with pytest.raises(openai.NotFoundError, match="keeps the newest 1000"):
        client.responses.retrieve(unkept.id)


def test_tools_are_called_and_answered(client: OpenAI) -> None:
    # One call only: tokens for a second one might not suffice.
    options: Any = {"model": "default", "max_output_tokens": 120, "tools": [TOOL]}
    options["parallel_tool_calls"] = False
    called = client.responses.create(input=WEATHER, tool_choice="required", **options)
    call = called.output[0]
    assert call.type == "function_call"
    validate(json.loads(call.arguments), TOOL["parameters"])
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    said: Any = [{"role": "user", "content": WEATHER}, *called.output, result]
    assert client.responses.create(input=said, **options).output
    going_on = {"previous_response_id": called.id, "input": [result]}
    assert client.responses.create(**going_on, **options).output
    named = {"type": "function", "name": "get_weather"}
    events, final = streamed(client, input=WEATHER, tool_choice=named, **options)
    (streamed_call,) = final.output
    assert streamed_call.type == "function_call"
    validate(json.loads(streamed_call.arguments), TOOL["parameters"])
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == streamed_call.arguments


def test_json_answers_follow_their_schema(client: OpenAI) -> None:
    parsed = client.responses.parse(**{**ASKED, "max_output_tokens": 40}, text_format=Counted)
    assert isinstance(parsed.output_parsed, Counted)


def test_reasoning_is_an_item_of_its_own(thinker: OpenAI) -> None:
    asked = {**ASKED, "max_output_tokens": 6}
    response = thinker.responses.create(**asked)
    assert [item.type for item in response.output] == ["reasoning"]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 6
    events, final = streamed(thinker, **asked)
    assert [item.type for item in final.output] == ["reasoning"]
    thoughts = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == response.output[0].content[0].text
    silent = thinker.responses.create(**asked, reasoning={"effort": "none"})
    assert [item.type for item in silent.output] == ["message"]


def test_what_does_not_fit_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt'"):
        client.responses.create(**{**ASKED, "model": "gpt"})
    with pytest.raises(openai.BadRequestError, match="Only functions"):
        client.responses.create(**ASKED, tools=[{"type": "web_search"}])
    image: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    with pytest.raises(openai.BadRequestError, match="Only text can be read"):
        client.responses.create(**{**ASKED, "input": image})
    with pytest.raises(openai.BadRequestError, match="item_reference"):
        client.responses.create(**{**ASKED, "input": [{"type": "item_reference", "id": "x"}]})
    response = client.responses.create(**ASKED, extra_body={"colour": 1})
    assert extra(response)["warnings"] == ["colour has no effect here."]


def test_items_become_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "x", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "9"},
        {"type": "message", "role": "assistant", "content": "B"},
        {"type": "message", "role": "assistant", "content": "C"},
    ]
    function = {"name": "now", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ("a", "b")]
    assert ResponsesBody.model_validate({"input": items}).input_messages() == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "A", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "9"},
        {"role": "assistant", "content": "B"},
        {"role": "assistant", "content": "C"},
    ]
