"""What Ollama's `/api/chat` and `/api/generate` take, and the request each amounts to.

In:  the parsed JSON of a body. Out: a `ChatBody`, or a `CompletionBody` for raw prompts.
Sampling that is not given is Ollama's usual one; its repeat penalty is not, since ours looks at the
whole text.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from headlong.config import MAX_TEMPERATURE
from headlong.server.chat_protocol import ChatBody
from headlong.server.completions import CompletionBody
from headlong.server.protocol import StopText
from headlong.server.refusal import bad_request
from headlong.server.translation import OpenBody, OpenPart, inner_body

DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}


class Options(OpenPart):
    """Sampling and stopping; what is about loading a model has no effect here."""

    num_predict: int | None = Field(None, ge=-2, description="Below 1: what the context has left.")
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE)
    top_k: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    repeat_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-100, le=100)
    frequency_penalty: float | None = Field(None, ge=-100, le=100)

    def fields(self) -> dict[str, Any]:
        """Return them under the names of the inner request."""
        penalties = ("presence_penalty", "frequency_penalty")
        own = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", *penalties)
        given = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        most = self.num_predict
        return {
            **DEFAULTS,
            **given,
            "repetition_penalty": self.repeat_penalty,
            "max_tokens": most if most is not None and most > 0 else None,
        }


class CalledFunction(OpenPart):
    """The function an earlier answer called."""

    name: str
    arguments: dict[str, Any] | None = None


class EarlierCall(OpenPart):
    """A call an earlier answer made."""

    id: str | None = None
    function: CalledFunction


class OllamaMessage(OpenPart):
    """A message of the conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_name: str | None = None


class _Generating(OpenBody):
    """What both routes share."""

    model: str = Field(min_length=1, description="A name that `/api/tags` lists, or `default`.")
    stream: bool | None = Field(None, description="One JSON object a line. Default: true.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(
        None, description="json, or a JSON schema."
    )
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None, description="Reason before the answer, or not. Default: the chat template's."
    )
    keep_alive: float | int | str | None = Field(None, description="No effect here.")

    def shared_fields(self) -> dict[str, Any]:
        """Return what chat requests and plain ones have in common."""
        fields = (self.options or Options.model_validate({})).fields()
        name = self.model.removesuffix(":latest")
        return fields | self.draft_fields() | {"model": name, "stream": self.stream is not False}

    def chat_fields(self) -> dict[str, Any]:
        """Return what a chat request has besides its messages."""
        think, wanted = self.think, dict[str, Any]()
        if self.format == "json":
            wanted = {"type": "json_object"}
        elif isinstance(self.format, dict):
            named = {"name": "answer", "schema": self.format}
            wanted = {"type": "json_schema", "json_schema": named}
        return self.shared_fields() | {
            "response_format": wanted or None,
            "enable_thinking": think if isinstance(think, bool) else None,
            "reasoning_effort": think if isinstance(think, str) else None,
        }

    def idle_warnings(self) -> list[str]:
        """Say which of the given fields do nothing."""
        options = self.options.model_extra if self.options is not None else None
        idle = [f"options.{name} has no effect here." for name in options or ()]
        return self.open_warnings() + idle


class OllamaChatBody(_Generating):
    """A chat request."""

    messages: list[OllamaMessage]
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None

    def to_chat(self) -> ChatBody:
        """Return the chat request this amounts to."""
        messages = list(_translated(self.messages))
        return inner_body(
            ChatBody, self.chat_fields() | {"messages": messages, "tools": self.tools or None}
        )


class OllamaGenerateBody(_Generating):
    """A request to answer one prompt, or to continue a text."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = Field(None, description="Continue the prompt, without the chat template.")
    suffix: str | None = Field(None, description="Fill in the middle before this text.")
    template: None = Field(None, description="The model's own is used.")
    images: list[Any] | None = None
    context: list[int] | None = Field(None, description="No effect here: use /api/chat.")

    def to_chat(self) -> ChatBody:
        """Return the chat request this amounts to."""
        _refuse_images(self.images, "images")
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, {"role": "user", "content": self.prompt or ""}]
        return inner_body(ChatBody, self.chat_fields() | {"messages": messages})

    def to_completion(self, prompt: str | list[int]) -> CompletionBody:
        """Return the plain request that goes on with a prompt."""
        fields = self.shared_fields() | {"prompt": prompt, "suffix": self.suffix}
        fields["max_tokens"] = fields["max_tokens"] or -1
        if self.format:
            schema = {"type": "object"} if self.format == "json" else self.format
            fields["guided_json"] = schema
        return inner_body(CompletionBody, fields)


def _translated(messages: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Yield messages as OpenAI has them; calls get ids, results those of the calls before them."""
    ids: list[str] = []
    for place, message in enumerate(messages):
        _refuse_images(message.images, f"messages[{place}].images")
        one: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.tool_calls:
            calls = [_call(call, f"call_{place}_{i}") for i, call in enumerate(message.tool_calls)]
            ids = [call["id"] for call in calls]
            one["tool_calls"] = calls
        if message.role == "tool":
            one |= {"tool_call_id": ids.pop(0) if ids else "", "name": message.tool_name}
        if message.role == "assistant" and message.thinking:
            one["reasoning_content"] = message.thinking
        yield one


def _call(call: EarlierCall, call_id: str) -> dict[str, Any]:
    arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or call_id, "type": "function", "function": function}


def _refuse_images(images: Sequence[Any] | None, param: str) -> None:
    if images:
        raise bad_request(f"{param} was given. Only text can be read here.", param, "invalid_value")
