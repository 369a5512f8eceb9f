"""JSON, tools and an agent's loop through the official client, against a real server process."""

import json
from typing import Any

import pytest
from jsonschema import validate  # type: ignore[import-untyped]  # it has no types
from openai import OpenAI

from live_server import LiveServer
from openai_calls import ask, content, extra, stream

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(live: LiveServer) -> OpenAI:
    """The client, set up as any user would."""
    return live.client()


def test_json_object_and_schema_are_followed(client: OpenAI) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=120, temperature=0.7)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    schema = {
        "type": "object",
        "properties": {
            "colours": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
            "count": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["colours", "count"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "colours", "schema": schema}}
    texts = set()
    for mtp in ("off", "auto"):
        chunks = stream(client, response_format=wanted, max_tokens=120, extra_body={"mtp": mtp})
        validate(json.loads(content(chunks)), schema)
        texts.add(content(chunks))
        drafters = extra(chunks[-1])["mtp"]["by_drafter"]
        assert ("grammar" in drafters) == (mtp == "auto")
    assert len(texts) == 1


def test_agent_loop_calls_a_tool_and_answers(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    options: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 120}
    called = ask(
        client, messages=messages, tool_choice="required", parallel_tool_calls=False, **options
    ).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.content is None
    (call,) = called.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 24 degrees."}
    final = ask(client, messages=[*messages, called.message, result], **options).choices[0]
    assert final.finish_reason in ("stop", "length", "tool_calls")
    assert final.message.content or final.message.tool_calls


def test_tool_calls_are_streamed_in_pieces(client: OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    chunks = stream(client, tools=[WEATHER], tool_choice=named, max_tokens=120)
    deltas = [
        delta
        for chunk in chunks
        for choice in chunk.choices
        for delta in choice.delta.tool_calls or []
    ]
    assert deltas[0].id
    assert deltas[0].function is not None
    assert deltas[0].function.name == "get_weather"
    arguments = "".join(d.function.arguments or "" for d in deltas if d.function)
    validate(json.loads(arguments), WEATHER["function"]["parameters"])
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert content(chunks) == ""


def test_tools_are_hidden_when_none_may_be_called(client: OpenAI) -> None:
    answer = ask(client, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage == ask(client).usage or answer.choices[0].message.content
