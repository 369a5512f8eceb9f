"""`POST /v1/chat/completions`: an answer to a conversation, in words or tool calls.

In:  OpenAI's request. Out: OpenAI's answer, streamed or whole.
Messages and tools are written by the model's chat template; what the answer must look like (JSON,
a call) becomes a grammar that the engine follows token by token.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from headlong.config import MtpMode
from headlong.decode.sampling import TokenLogprob
from headlong.engine.request import FinishReason, RequestReport
from headlong.generation import Chunk
from headlong.server import preparation
from headlong.server.answering import answer_with
from headlong.server.call import CHAT
from headlong.server.chat_protocol import ChatBody
from headlong.server.choices import ChoiceWriter, TokenDetails
from headlong.server.refusal import bad_request
from headlong.server.response_schemas import CHAT_RESPONSES
from headlong.server.service import Service
from headlong.text.tokenizer import Tokenizer
from headlong.text.tool_calls import TextDelta, ToolCallReader, ToolCallStart, ToolEvent

router = APIRouter(tags=["completions"])


@router.post(CHAT.route, responses=CHAT_RESPONSES, response_class=Response)
async def create_chat_completion(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    return await answer_with(prepare_chat, CHAT, body, request)


def count_chat_tokens(service: Service, body: ChatBody) -> int:
    """Return how many tokens a conversation has for the model."""
    service.check_model(body.model)
    form = preparation.read_answer_constraint(body, body.form_options())
    template = body.template_options(form.tools)
    return len(preparation.prepare_messages(service, body.messages, template).token_ids)


def prepare_chat(
    service: Service, body: ChatBody, mtp: MtpMode, warnings: Sequence[str] = ()
) -> preparation.PreparedAnswer:
    """Turn a body into engine requests and writers; `warnings` are added to its own."""
    preparation.check_body(service, body)
    _check(body)
    form = preparation.read_answer_constraint(body, body.form_options())
    tokenizer = service.model.tokenizer
    template = body.template_options(form.tools)
    prompt = preparation.prepare_messages(service, body.messages, template)
    num_prompt_tokens = len(prompt.token_ids)
    preparation.check_prompt(service, num_prompt_tokens, "messages")
    max_tokens = body.max_completion_tokens or body.max_tokens
    options = {
        "max_tokens": max_tokens,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }
    grammar = form.make_grammar(tokenizer, prompt.reasoning)
    if body.reasoning_format == "none":
        prompt = replace(prompt, reasoning=None)
    maker = preparation.RequestMaker(service, body, mtp, options, grammar)
    shows_reasoning = body.include_reasoning is not False
    wanted = TokenDetails.of(body, logprobs=bool(body.logprobs), reasoning=shows_reasoning)
    choices = maker.choices_for(prompt)
    writers = []
    for i in range(len(choices)):
        style, names = tokenizer.tool_style, form.tool_names
        calls = ToolCallReader(secrets.token_hex(8), style, names)
        writers.append(ChatChoice(i, wanted, tokenizer, None if form.tools is None else calls))
    warnings = [*warnings, *body.warnings(), *prompt.warnings]
    warnings += preparation.room_warnings(service, max_tokens, num_prompt_tokens)
    warnings += () if grammar is None else grammar.warnings
    return preparation.PreparedAnswer(choices, writers, 1, warnings)


def _check(body: ChatBody) -> None:
    asked = (body.max_tokens, body.max_completion_tokens)
    if None not in asked and asked[0] != asked[1]:
        message = f"max_tokens is {asked[0]}, max_completion_tokens is {asked[1]}. Keep one."
        raise bad_request(message, "max_tokens", "invalid_value")
    if body.top_logprobs and not body.logprobs:
        message = f"top_logprobs is {body.top_logprobs}, but logprobs is not true. Set it."
        raise bad_request(message, "top_logprobs", "invalid_value")
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        message = "tool_choice demands a call, but there are no tools. Give some."
        raise bad_request(message, "tool_choice", "invalid_value")


class ChatChoice(ChoiceWriter):
    """Writes one message of text and tool calls.

    Where tools may be called, the text goes through a `ToolCallReader` first; calls are streamed as
    they are written.
    """

    def __init__(
        self,
        index: int,
        wanted: TokenDetails,
        tokenizer: Tokenizer,
        calls: ToolCallReader | None = None,
    ) -> None:
        """Begin a choice; `calls` finds tool calls in its text."""
        super().__init__(index, wanted, tokenizer)
        self._calls = calls
        self._has_calls = False

    def opening(self) -> dict[str, Any]:
        """Return the chunk that says who speaks."""
        return self._piece({"role": "assistant", "content": ""})

    def whole(self, chunks: Sequence[Chunk], report: RequestReport | None = None) -> dict[str, Any]:
        """Return the whole choice."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        message |= self._read(chunks)
        for call in message.get("tool_calls", ()):
            del call["index"]
        if not self._has_calls:
            message["content"] = message["content"] or ""
        assert chunks[-1].finish_reason is not None, "a whole choice has ended"
        self._end(chunks[-1].finish_reason)
        return {
            "index": self._index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.finish_reason,
            **self._details(chunks),
            **self._stopped(chunks),
        }

    def _end(self, reason: FinishReason) -> None:
        is_call = self._has_calls and reason is FinishReason.STOP
        self.finish_reason = "tool_calls" if is_call else str(reason)

    def _read(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return what chunks add to the message: content, calls, both or nothing."""
        text = "".join(chunk.text for chunk in chunks)
        thought = "".join(chunk.reasoning for chunk in chunks) if self._wanted.reasoning else ""
        # Two names for one thing: clients read one or the other.
        delta = {"reasoning_content": thought, "reasoning": thought} if thought else {}
        return {**delta, **self._read_answer(text, chunks)}

    def _read_answer(self, text: str, chunks: Sequence[Chunk]) -> dict[str, Any]:
        if self._calls is None:
            return {"content": text} if text else {}
        events = self._calls.push(text)
        if chunks and chunks[-1].finish_reason is not None:
            is_cut = chunks[-1].finish_reason is FinishReason.LENGTH
            events += self._calls.flush(is_cut=is_cut)
        return self._join(events)

    def _join(self, events: Sequence[ToolEvent]) -> dict[str, Any]:
        """Join events into one delta; each call appears in it once."""
        content, calls = "", dict[int, dict[str, Any]]()
        for event in events:
            if isinstance(event, TextDelta):
                content += event.text
            elif isinstance(event, ToolCallStart):
                function = {"name": event.name, "arguments": ""}
                head = {"index": event.index, "id": event.id, "type": "function"}
                calls[event.index] = {**head, "function": function}
            else:
                empty = {"index": event.index, "function": {"arguments": ""}}
                call = calls.setdefault(event.index, empty)
                call["function"]["arguments"] += event.text
        self._has_calls = self._has_calls or bool(calls)
        delta: dict[str, Any] = {"content": content} if content else {}
        return {**delta, "tool_calls": list(calls.values())} if calls else delta

    def _piece(self, content: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": content or {},
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        content = []
        for entry in entries:
            top = [self._token(other.token_id, other.logprob) for other in entry.top]
            content.append({**self._token(entry.token_id, entry.logprob), "top_logprobs": top})
        return {"content": content}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self._tokenizer.token_bytes(token_id)
        text = spelled.decode("utf-8", errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelled)}
