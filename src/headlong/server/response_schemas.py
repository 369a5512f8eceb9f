"""Schemas of responses, for the OpenAPI document.

`Usage` and `MtpReport` build their part of an answer. Choices are plain dictionaries, since a
stream writes thousands of them; a test holds real answers against the models here.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from headlong.server.chat_protocol import ToolCall
from headlong.server.refusal import ErrorBody
from headlong.server.telemetry import MtpReport, Usage


class TokenSource(BaseModel):
    """A piece of text and who proposed it."""

    text: str
    reasoning: str | None = Field(None, description="Text of the reasoning, where it is of that.")
    source: str = Field(description="backbone, head, ngram, grammar or draft-model.")
    depth: int = Field(description="Place in the draft, from 1; 0 for the backbone's own.")


class TopTokenLogprob(BaseModel):
    """A token that was likely."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopTokenLogprob):
    """A token of the answer."""

    top_logprobs: list[TopTokenLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat answer."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class AnsweredMessage(BaseModel):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = Field(
        None, description="What the model thought before it answered."
    )
    reasoning: str | None = Field(None, description="The same, under its other name.")
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class _Choice(BaseModel):
    index: int
    sources: list[TokenSource] | None = None
    token_ids: list[int] | None = None
    stop_reason: str | None = Field(None, description="The stop string that ended the answer.")


class AnsweredChatChoice(_Choice):
    """One answer to the conversation."""

    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class CompletionLogprobs(BaseModel):
    """Log-probabilities in OpenAI's four lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class AnsweredTextChoice(_Choice):
    """One continuation."""

    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class _Answered(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    mtp: MtpReport
    metrics: dict[str, Any] = Field(description="vLLM's, with speculative_decoding.")
    timings: dict[str, float] = Field(description="llama.cpp's, with draft_n.")
    warnings: list[str] | None = Field(None, description="What had no effect or was cut, and why.")


class ChatCompletion(_Answered):
    """An answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[AnsweredChatChoice]


class TextCompletion(_Answered):
    """Continuations of prompts."""

    object: Literal["text_completion"]
    choices: list[AnsweredTextChoice]


_REASONS = {
    400: "The request has to be changed; the message says how.",
    401: "An API key is missing or wrong.",
    403: "A web page from elsewhere, or a name that is not this server's.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    429: "Too many requests; Retry-After says when to come back.",
    500: "The engine failed on this request.",
    503: "The server is shutting down.",
    504: "The request took longer than the server allows.",
}

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": reason} for status, reason in _REASONS.items()
}


def _responses(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return a route's answers: the whole one, the stream, the errors."""
    events = {
        # The schema of one event, as tools that read streams take it.
        "schema": {
            "type": "object",
            "description": "`data: {chunk}` lines, then `data: [DONE]`.",
            "properties": {"data": {"type": "string"}},
            "required": ["data"],
        }
    }
    answered = {
        "model": model,
        "description": "The answer; with `stream` as server-sent events.",
        "content": {"text/event-stream": events},
    }
    return {200: answered, **ERRORS}


SHAPED_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": reason} for status, reason in _REASONS.items()
}
"""Of routes whose errors have another protocol's form."""

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` as it comes.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/x-ndjson": {},
            "text/event-stream": {},
        },
    },
    **SHAPED_ERRORS,
}
"""Of routes that answer in another protocol's form."""

CHAT_RESPONSES = _responses(ChatCompletion)
COMPLETION_RESPONSES = _responses(TextCompletion)
