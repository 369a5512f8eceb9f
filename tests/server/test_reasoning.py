"""Reasoning over HTTP: its own field, streamed or whole; switched, hidden, counted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headlong.decode.sampling import Pick
from headlong.engine.request import Emitted, FinishReason
from headlong.generation import Chunk
from headlong.llm import LLM
from headlong.server.chat import prepare_chat
from headlong.server.chat_protocol import ChatBody
from headlong.server.preparation import PreparedAnswer
from live_server import LiveServer, serve
from openai_calls import ask, extra
from served_model import make_model_app

SAID = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def llm(thinking_model_path: Path) -> LLM:
    """A tiny model whose template opens the reasoning."""
    return LLM.load(thinking_model_path, backend="numpy")


@pytest.fixture(scope="module")
def thinker(thinking_model_path: Path) -> Iterator[LiveServer]:
    """The same behind a server process."""
    with serve(thinking_model_path, "--backend", "numpy") as server:
        yield server


def prepare(llm: LLM, **fields: Any) -> PreparedAnswer:
    """Prepare a chat answer."""
    service = make_model_app(llm).state.service
    return prepare_chat(service, ChatBody.model_validate({"messages": [SAID], **fields}), "off")


def thought(llm: LLM, text: str, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the deltas and the whole message of an answer that says `text`."""
    messages = []
    for is_whole in (False, True):
        prepared = prepare(llm, **fields)
        (writer,), (choice,) = prepared.writers, prepared.choices
        chunks = list(read(llm, choice.reader, text))
        if is_whole:
            messages.append(writer.whole(chunks)["message"])
        else:
            deltas = [piece["delta"] for one in chunks for piece in writer.pieces([one])]
    return deltas, messages[0]


def read(llm: LLM, reader: Any, text: str) -> Iterator[Chunk]:
    """Read an answer token by token."""
    ids = llm.tokenizer.encode(text, add_special=False)
    for i, token_id in enumerate(ids):
        end = FinishReason.STOP if i == len(ids) - 1 else None
        yield reader.read(Emitted(Pick(token_id, None), "backbone", 0), end)


def joined(deltas: list[dict[str, Any]], name: str) -> str:
    return "".join(delta.get(name) or "" for delta in deltas)


def test_reasoning_has_fields_of_its_own(llm: LLM) -> None:
    deltas, message = thought(llm, "Hm.\n</think>\n\nYes.")
    assert message["reasoning_content"] == message["reasoning"] == "Hm."
    assert message["content"] == "Yes."
    assert joined(deltas, "reasoning_content") == joined(deltas, "reasoning") == "Hm."
    assert joined(deltas, "content") == "Yes."


def test_calls_come_after_reasoning(llm: LLM) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    _, message = thought(llm, f"Call {call}?</think>\n\n{call}", tools=[TOOL])
    assert message["reasoning_content"] == f"Call {call}?"
    assert [one["function"]["name"] for one in message["tool_calls"]] == ["now"]
    assert message["content"] is None


def test_reasoning_can_be_left_out_or_left_in(llm: LLM) -> None:
    deltas, message = thought(llm, "Hm.</think>Yes.", include_reasoning=False)
    assert (message.get("reasoning_content"), message["content"]) == (None, "Yes.")
    assert joined(deltas, "reasoning_content") == ""
    _, message = thought(llm, "Hm.</think>Yes.", reasoning_format="none")
    assert (message.get("reasoning_content"), message["content"]) == (None, "Hm.</think>Yes.")


def test_sources_tell_reasoning_from_text(llm: LLM) -> None:
    prepared = prepare(llm, return_sources=True)
    (writer,), (choice,) = prepared.writers, prepared.choices
    sources = writer.whole(list(read(llm, choice.reader, "Hm</think>ok")))["sources"]
    assert "".join(one.get("reasoning", "") for one in sources) == "Hm"
    assert "".join(one["text"] for one in sources) == "ok"


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "assistant\n<think>\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "none"}, "<think>\n\n</think>\n\n"),
        ({"reasoning_effort": "high"}, "assistant\n<think>\n"),
        ({"add_generation_prompt": False}, "hello<|im_end|>\n"),
    ],
)
def test_fields_reach_the_template(llm: LLM, fields: dict[str, Any], end: str) -> None:
    (choice,) = prepare(llm, **fields).choices
    prompt = llm.tokenizer.decode(choice.request.prompt_ids, skip_special=False)
    assert prompt.endswith(end)


def test_keywords_that_are_not_read_are_named(llm: LLM) -> None:
    warnings = prepare(llm, chat_template_kwargs={"colour": 1}).warnings
    assert warnings == ["The model's chat template does not read 'colour'."]


def test_official_client_sees_reasoning(thinker: LiveServer) -> None:
    client = thinker.client()
    options: dict[str, Any] = {
        "model": "default",
        "messages": [SAID],
        "max_tokens": 8,
        "logit_bias": {"66": 100},
    }
    answer = client.chat.completions.create(**options)
    assert answer.choices[0].finish_reason == "length"
    assert extra(answer.choices[0].message)["reasoning_content"] == "c" * 8
    assert answer.choices[0].message.content == ""
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 8
    chunks = list(client.chat.completions.create(stream=True, **options))
    said = [extra(chunk.choices[0].delta).get("reasoning_content", "") for chunk in chunks]
    assert "".join(said) == "c" * 8
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
    plain = client.chat.completions.create(extra_body=kwargs, **options)
    assert plain.choices[0].message.content == "c" * 8


def test_earlier_reasoning_is_taken_back(thinker: LiveServer) -> None:
    client = thinker.client()
    begun = [SAID, {"role": "assistant", "content": "Hi.", "reasoning_content": "Greet."}, SAID]
    body = {"messages": begun}
    ids = thinker.post("/tokenize", body).json()["tokens"]
    text = thinker.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert "<think>Greet.</think>Hi." in text
    answer = ask(client, messages=begun, max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
