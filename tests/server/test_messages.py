"""Anthropic's API through the official client, against real server processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from jsonschema import validate  # type: ignore[import-untyped]  # it has no types

from headlong.server.messages_protocol import MessagesBody
from live_server import LiveServer, serve
from openai_calls import extra

ASKED: Any = {
    "model": "default",
    "system": "You are brief.",
    "messages": [{"role": "user", "content": "Name three colours."}],
    "max_tokens": 16,
    "extra_body": {"temperature": 0},
}
TOOL: Any = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[anthropic.Anthropic]:
    """The official client, set up for the default model."""
    yield from client_of(live)


@pytest.fixture(scope="module")
def thinker(thinking_model_path: Path) -> Iterator[anthropic.Anthropic]:
    """The same for a tiny model that reasons."""
    with serve(thinking_model_path, "--backend", "numpy") as server:
        yield from client_of(server)


@pytest.fixture(scope="module")
def locked(tiny_model_path: Path) -> Iterator[LiveServer]:
    """A server with a key and a small queue."""
    with serve(tiny_model_path, "--backend", "numpy", "--api-key", "right-key") as server:
        yield server


def asking(**more: Any) -> Any:
    """The usual question with fields of ours."""
    return {**ASKED, "extra_body": {"temperature": 0, **more}}


def client_of(server: LiveServer, key: str = "unused") -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0) as client:
        yield client


def streamed(client: anthropic.Anthropic, fields: Any) -> Any:
    """Return the message that a stream amounts to."""
    with client.messages.stream(**fields) as stream:
        return stream.get_final_message()


def test_message_says_what_chat_says(client: anthropic.Anthropic, live: LiveServer) -> None:
    messages = [{"role": "system", "content": ASKED["system"]}, *ASKED["messages"]]
    body = {"messages": messages, "max_tokens": 16, "temperature": 0}
    chat = live.post("/v1/chat/completions", body).json()
    message = client.messages.create(**ASKED)
    assert (message.type, message.role) == ("message", "assistant")
    (block,) = message.content
    assert block.type == "text"
    assert block.text == chat["choices"][0]["message"]["content"]
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 16
    cached = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + cached == chat["usage"]["prompt_tokens"]
    assert extra(message)["mtp"]["rounds"] > 0


@pytest.mark.parametrize("mtp", ["off", "auto", 3])
def test_stream_is_the_whole_message(client: anthropic.Anthropic, mtp: Any) -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**asking(mtp=mtp)) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text"]
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_header_says_how_to_draft(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASKED, extra_headers={"X-Headlong-MTP": "2"})
    assert extra(message)["mtp"]["mode"] == 2


def test_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**ASKED).content[0].text
    wanted = {**ASKED, "stop_sequences": ["never", text[4:7]]}
    for message in (
        client.messages.create(**wanted),
        streamed(client, wanted),
    ):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[4:7])
        assert message.content[0].text == text[: text.index(text[4:7])]


def test_tools_are_called_and_answered(client: anthropic.Anthropic) -> None:
    options: Any = {"model": "default", "max_tokens": 120, "tools": [TOOL]}
    forced: Any = {**options, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    called = client.messages.create(messages=WEATHER, **forced)
    assert called.stop_reason == "tool_use"
    (call,) = called.content
    assert call.type == "tool_use"
    assert call.name == "get_weather"
    validate(call.input, TOOL["input_schema"])
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}
    said: Any = [*WEATHER, {"role": "assistant", "content": called.content}]
    said.append({"role": "user", "content": [result, {"type": "text", "text": "So?"}]})
    answer = client.messages.create(messages=said, **options)
    assert answer.content
    named: Any = {**options, "tool_choice": {"type": "tool", "name": "get_weather"}}
    with client.messages.stream(messages=WEATHER, **named) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message().content[0]
    assert "input_json" in kinds
    assert streamed.type == "tool_use"
    validate(streamed.input, TOOL["input_schema"])


def test_json_answers_follow_their_schema(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(**asking(output_config=wanted))
    assert set(json.loads(message.content[0].text)) == {"n"}


def test_answer_goes_on_from_an_assistants_words(client: anthropic.Anthropic) -> None:
    begun: Any = [*ASKED["messages"], {"role": "assistant", "content": "1. Red\n2."}]
    message = client.messages.create(**{**ASKED, "messages": begun})
    assert not message.content[0].text.startswith("1.")


def test_thinking_is_a_block_of_its_own(thinker: anthropic.Anthropic) -> None:
    asked: Any = {**ASKED, "max_tokens": 6}
    message = thinker.messages.create(**asked)
    assert [block.type for block in message.content] == ["thinking"]
    with thinker.messages.stream(**asked) as stream:
        assert stream.get_final_message().content == message.content
    silent: Any = {**asked, "thinking": {"type": "disabled"}}
    assert [b.type for b in thinker.messages.create(**silent).content] == ["text"]


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    fields = {name: ASKED[name] for name in ("model", "system", "messages")}
    count = client.messages.count_tokens(**fields, tools=[TOOL]).input_tokens
    plain = client.messages.count_tokens(**fields).input_tokens
    assert count > plain + 20
    usage = client.messages.create(**ASKED).usage
    assert plain == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_have_anthropics_form(client: anthropic.Anthropic, locked: LiveServer) -> None:
    with pytest.raises(anthropic.NotFoundError, match="There is no model 'claude'"):
        client.messages.create(**{**ASKED, "model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is 0") as caught:
        client.messages.create(**{**ASKED, "max_tokens": 0})
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    image: Any = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    with pytest.raises(anthropic.BadRequestError, match="Only text can be read"):
        client.messages.create(**{**ASKED, "messages": image})
    long: Any = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(anthropic.BadRequestError, match="tokens"):
        client.messages.create(**{**ASKED, "messages": long})
    for wrong in client_of(locked, "wrong"):
        with pytest.raises(anthropic.AuthenticationError, match="not one of this server's"):
            wrong.messages.create(**ASKED)
    for right in client_of(locked, "right-key"):
        assert right.messages.create(**{**ASKED, "max_tokens": 1}).usage.output_tokens == 1


def test_fields_without_effect_are_named(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**asking(container="x", colour=1))
    names = ("container", "colour")
    assert extra(message)["warnings"] == [f"{name} has no effect here." for name in names]


def test_messages_become_those_of_a_chat() -> None:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "a", "name": "now", "input": {"b": 1}},
    ]
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "9"}]}
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    body = MessagesBody.model_validate({"messages": said, "max_tokens": 1, "mtp": 3})
    chat = body.to_answer()
    assert [one.to_template() for one in chat.messages] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "now", "arguments": '{"b": 1}'},
                }
            ],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "content": "9", "tool_call_id": "a"},
    ]
    assert chat.mtp == 3
