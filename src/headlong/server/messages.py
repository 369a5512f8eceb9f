"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

In:  Anthropic's request. Out: Anthropic's message, streamed or whole, our `mtp` beside `usage`.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from headlong.server.answer_format import AnswerFormat, Ending, to_json
from headlong.server.answering import answer_with
from headlong.server.call import Call, CallKind
from headlong.server.chat import count_chat_tokens, prepare_chat
from headlong.server.messages_protocol import CountBody, MessagesBody
from headlong.server.preparation import PreparedAnswer
from headlong.server.response_schemas import EVENTS, SHAPED_ERRORS
from headlong.server.service import service_of
from headlong.server.telemetry import Usage

MESSAGES = CallKind("messages", "/v1/messages", "msg", "message", "message")

router = APIRouter(tags=["anthropic"])

_EMPTY: Mapping[str, Mapping[str, Any]] = {
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
    "tool_use": {"type": "tool_use", "input": {}},
}

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class TokenCount(BaseModel):
    """How many tokens a conversation has."""

    input_tokens: int


@router.post(MESSAGES.route, responses=EVENTS, response_class=Response)
async def create_message(body: MessagesBody, request: Request) -> Response:
    """Answer a conversation, in Anthropic's form."""
    prepare = partial(prepare_chat, warnings=body.open_warnings())
    return await answer_with(prepare, MESSAGES, body.to_answer(), request, MessageFormat)


@router.post(f"{MESSAGES.route}/count_tokens", responses=SHAPED_ERRORS)
async def count_tokens(body: CountBody, request: Request) -> TokenCount:
    """Count the tokens of a conversation."""
    service = service_of(request)
    count = partial(count_chat_tokens, service, body.to_chat())
    return TokenCount(input_tokens=await service.in_text_thread(count))


class MessageFormat(AnswerFormat):
    """Writes one message: blocks of thinking, text and calls, one after another."""

    def __init__(self, call: Call, prepared: PreparedAnswer) -> None:
        """Begin an answer."""
        self._head = {
            "id": call.id,
            "type": "message",
            "role": "assistant",
            "model": call.service.model_id,
        }
        self._num_prompt_tokens = len(prepared.choices[0].request.prompt_ids)
        self._num_blocks = 0
        self._open: tuple[str, int] | None = None
        """The kind of the block that is being written, and the number of its call."""

    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the whole message."""
        choice, content = choices[0], list[dict[str, Any]]()
        message = choice["message"]
        if thought := message.get("reasoning_content"):
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        if message["content"]:
            content.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls", ()):
            given = _arguments(call["function"]["arguments"])
            name = call["function"]["name"]
            content.append({"type": "tool_use", "id": call["id"], "name": name, "input": given})
        parts = {"content": content, **_stop(choice), "usage": _usage(ending.usage)}
        return {**self._head, **parts, **ending.telemetry}

    def opening(self, choices: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the message without its content."""
        usage = {"input_tokens": self._num_prompt_tokens, "output_tokens": 0}
        unknown = {"stop_reason": None, "stop_sequence": None}
        message: dict[str, Any] = {**self._head, "content": [], **unknown, "usage": usage}
        return _event("message_start", message=message) + _event("ping")

    def pieces(self, pieces: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the events of deltas."""
        return b"".join(self._delta(piece["delta"]) for piece in pieces)

    def last(self, pieces: Sequence[Mapping[str, Any]], ending: Ending) -> bytes:
        """Return the end of the last block and of the message."""
        events = self.pieces(pieces) + self._close()
        more = {"usage": _usage(ending.usage), **ending.telemetry}
        events += _event("message_delta", delta=_stop(pieces[-1]), **more)
        return events + _event("message_stop")

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        events = b""
        if thought := delta.get("reasoning_content"):
            events += self._write("thinking", {"type": "thinking_delta", "thinking": thought})
        if text := delta.get("content"):
            events += self._write("text", {"type": "text_delta", "text": text})
        for call in delta.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            piece = {"type": "input_json_delta", "partial_json": arguments}
            events += self._write("tool_use", piece, call)
        return events

    def _write(
        self, kind: str, delta: Mapping[str, Any], call: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return a delta in its block, which is begun where another kind was written before."""
        wanted = (kind, 0 if call is None else int(call["index"]))
        events = b""
        if self._open != wanted:
            block = dict(_EMPTY[kind])
            if call is not None:
                block |= {"id": call["id"], "name": call["function"]["name"]}
            events = self._close()
            events += _event("content_block_start", index=self._num_blocks, content_block=block)
            self._open = wanted
        return events + _event("content_block_delta", index=self._num_blocks, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._num_blocks += 1
        return _event("content_block_stop", index=self._num_blocks - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + to_json({"type": kind, **fields}) + b"\n\n"


def _stop(choice: Mapping[str, Any]) -> dict[str, Any]:
    sequence = choice.get("stop_reason")
    reason = _STOP_REASONS.get(choice["finish_reason"], "end_turn")
    return {"stop_reason": "stop_sequence" if sequence else reason, "stop_sequence": sequence}


def _usage(usage: Usage) -> dict[str, int]:
    num_cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - num_cached,
        "cache_read_input_tokens": num_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments; those of a call that was cut are none."""
    try:
        given = json.loads(text)
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}
