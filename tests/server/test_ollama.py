"""Ollama's API through the official client, against real server processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest
from jsonschema import validate  # type: ignore[import-untyped]  # it has no types

from headlong.server.ollama_protocol import OllamaChatBody
from live_server import LiveServer, serve

ASKED: Any = {
    "model": "default",
    "messages": [{"role": "user", "content": "Name three colours."}],
    "options": {"temperature": 0, "num_predict": 16, "top_k": 0, "top_p": 1},
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[ollama.Client]:
    """The official client, set up for the default model."""
    yield from client_of(live)


@pytest.fixture(scope="module")
def thinker(thinking_model_path: Path) -> Iterator[ollama.Client]:
    """The same for a tiny model that reasons."""
    with serve(thinking_model_path, "--backend", "numpy") as server:
        yield from client_of(server)


def client_of(server: LiveServer) -> Iterator[ollama.Client]:
    client = ollama.Client(host=server.url)
    yield client
    client._client.close()


def test_chat_says_what_openai_s_says(client: ollama.Client, live: LiveServer) -> None:
    body = {"messages": ASKED["messages"], "max_tokens": 16, "temperature": 0}
    chat = live.post("/v1/chat/completions", body).json()
    answer = client.chat(**ASKED)
    assert answer.message.content == chat["choices"][0]["message"]["content"]
    assert (answer.done, answer.done_reason) == (True, "length")
    assert (answer.eval_count, answer.prompt_eval_count) == (16, chat["usage"]["prompt_tokens"])
    assert answer.eval_duration is not None
    assert answer.eval_duration > 0


@pytest.mark.parametrize("mtp", ["off", "auto", 3])
def test_stream_is_the_whole_answer(client: ollama.Client, live: LiveServer, mtp: Any) -> None:
    whole = client.chat(**ASKED).message.content
    pieces = list(client.chat(**ASKED, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == whole
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    answer = live.post("/api/chat", {**ASKED, "mtp": mtp})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == whole
    assert lines[-1]["mtp"]["mode"] == mtp


def test_prompt_is_answered_or_continued(client: ollama.Client, live: LiveServer) -> None:
    options = ASKED["options"]
    chat = client.chat(**ASKED).message.content
    asked = {"model": "default", "options": options}
    assert client.generate(prompt="Name three colours.", **asked).response == chat
    body = {"prompt": "The sky is", "max_tokens": 16, "temperature": 0}
    plain = live.post("/v1/completions", body).json()["choices"][0]["text"]
    assert client.generate(prompt="The sky is", raw=True, **asked).response == plain
    pieces = list(client.generate(prompt="The sky is", raw=True, stream=True, **asked))
    assert "".join(piece.response or "" for piece in pieces) == plain
    system = client.generate(prompt="Hello", system="You are a cat.", **asked)
    messages = [
        {"role": "system", "content": "You are a cat."},
        {"role": "user", "content": "Hello"},
    ]
    assert system.response == client.chat(**{**ASKED, "messages": messages}).message.content


def test_tools_are_called_and_answered(client: ollama.Client) -> None:
    messages: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    body = {"model": "default", "messages": messages, "tools": [TOOL], "stream": False}
    forced = {**body, "options": {"temperature": 0, "num_predict": 120}}
    answer = client.chat(**forced)
    pieces = list(client.chat(**{**forced, "stream": True}))
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert calls == list(answer.message.tool_calls or ())
    for call in calls:
        validate(dict(call.function.arguments), TOOL["function"]["parameters"])
    said = [
        *messages,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}],
        },
        {"role": "tool", "content": "Sunny.", "tool_name": "get_weather"},
    ]
    assert client.chat(**{**forced, "messages": said, "tools": None}).message.content


def test_answers_follow_their_format(client: ollama.Client) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"n": {"type": "boolean"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    options = {**ASKED["options"], "num_predict": 60}
    answer = client.chat(**{**ASKED, "options": options}, format=schema)
    assert "n" in json.loads(answer.message.content or "")
    raw = client.generate("default", "Count: ", raw=True, format=schema, options=options)
    assert "n" in json.loads(raw.response or "")


def test_thinking_is_a_field_of_its_own(thinker: ollama.Client) -> None:
    asked = {**ASKED, "options": {"temperature": 0, "num_predict": 6}}
    answer = thinker.chat(**asked)
    assert (bool(answer.message.thinking), answer.message.content) == (True, "")
    pieces = list(thinker.chat(**asked, stream=True))
    assert "".join(piece.message.thinking or "" for piece in pieces) == answer.message.thinking
    silent = thinker.chat(**asked, think=False)
    assert (silent.message.thinking, bool(silent.message.content)) == (None, True)
    assert thinker.show("default").capabilities == ["completion", "tools", "thinking"]


def test_model_is_listed_and_shown(client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model is not None
    assert model.model.endswith(":latest")
    assert model.size is not None
    assert model.size > 50_000_000
    assert client.chat(**{**ASKED, "model": model.model}).done
    shown = client.show(model.model)
    assert shown.details is not None
    assert shown.details.family == "llama"
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] > 1000
    assert client.ps().models[0].model == model.model


def test_empty_requests_only_load(client: ollama.Client) -> None:
    assert client.generate("default").done_reason == "load"
    assert client.chat("default", messages=[]).done_reason == "load"


def test_errors_have_ollama_s_form(client: ollama.Client, live: LiveServer) -> None:
    with pytest.raises(ollama.ResponseError, match="There is no model 'llama3'") as caught:
        client.chat(**{**ASKED, "model": "llama3"})
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="Only text"):
        client.generate("default", "x", images=[b"abc"])
    answer = live.post("/api/chat", {"model": "default", "messages": 5})
    assert isinstance(answer.json()["error"], str)
    assert live.get("/api/version").json()["version"] == "0.12.0"


def test_options_without_effect_are_named(live: LiveServer) -> None:
    body = {**ASKED, "options": {"num_ctx": 4096, "num_predict": 1}, "stream": False}
    answer = live.post("/api/chat", body).json()
    assert answer["warnings"] == ["options.num_ctx has no effect here."]


def test_defaults_are_ollama_s() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    chat = OllamaChatBody.model_validate(body).to_chat()
    assert (chat.temperature, chat.top_k, chat.top_p, chat.stream) == (0.8, 40, 0.9, True)
