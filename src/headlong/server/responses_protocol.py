"""What OpenAI's `/v1/responses` takes, and the chat request it amounts to.

In:  the parsed JSON of a body, and the messages of an earlier response that it goes on from.
Out: a `ChatBody`. Reasoning, words and calls are items of their own there and one message here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from headlong.config import MAX_TEMPERATURE, MAX_TOP_LOGPROBS
from headlong.server.chat_protocol import ChatBody
from headlong.server.refusal import bad_request
from headlong.server.translation import OpenBody, OpenPart, inner_body, text_of

Message: TypeAlias = dict[str, Any]


class Part(OpenPart):
    """A piece of an item: text is the only kind these models read."""

    type: str
    text: str | None = None


class InputItem(OpenPart):
    """A message, a call of a tool, its result, or reasoning."""

    type: str | None = Field(None, description="Default: message.")
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None


class FunctionTool(OpenPart):
    """A function of the client's; OpenAI's own tools are not here."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(OpenPart):
    """Demands a call of one function."""

    type: Literal["function"]
    name: str


class TextFormat(OpenPart):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(OpenPart):
    """What the text must look like."""

    format: TextFormat | None = None


class ReasoningConfig(OpenPart):
    """How the model reasons; summaries have no effect here."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class ResponsesBody(OpenBody):
    """A request for a response."""

    model: str | None = Field(None, description="A name that `/v1/models` lists, or `default`.")
    input: Annotated[str, Field(min_length=1)] | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = Field(None, description="The system message of this response.")
    previous_response_id: str | None = Field(
        None, description="Go on from a response that is still kept."
    )
    store: bool | None = Field(None, description="Keep the response for later ones. Default: true.")
    stream: bool | None = Field(None, description="Send the answer as server-sent events.")
    max_output_tokens: int | None = Field(None, ge=1, description="New tokens at most.")
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE, description="Default: 1.")
    top_p: float | None = Field(None, ge=0, le=1, description="Default: 1.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description="No effect here: use chat completions."
    )
    seed: int | None = Field(None, description="Same seed, same text; ours, drawn when not given.")
    tools: Annotated[list[FunctionTool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    metadata: dict[str, Any] | None = Field(None, description="Given back as it is.")
    background: Literal[False] | None = Field(None, description="Not supported.")

    def input_messages(self) -> list[Message]:
        """Return the messages of the input."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return list(_joined(self.input))

    def to_chat(self, messages: Sequence[Message]) -> ChatBody:
        """Return the chat request this amounts to; `messages` are all but the instructions."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        wanted = self.text.format if self.text is not None else None
        choice: Any = self.tool_choice
        if isinstance(choice, NamedFunction):
            choice = {"type": "function", "function": {"name": choice.name}}
        fields = {
            "model": self.model,
            "messages": [*system, *messages],
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stream": self.stream,
            "tools": [_tool(place, tool) for place, tool in enumerate(self.tools or ())] or None,
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": None if wanted is None else _response_format(wanted),
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
        }
        return inner_body(ChatBody, fields | self.draft_fields())


def _joined(items: Sequence[InputItem]) -> Iterator[Message]:
    """Yield messages; neighbouring items of the model's are one message of it."""
    own: Message | None = None
    for place, item in enumerate(items):
        param = f"input[{place}]"
        kind = item.type or "message"
        is_own = kind in ("reasoning", "function_call") or item.role == "assistant"
        begins = kind != "function_call" and own is not None and _has_spoken(own)
        if own is not None and (begins or not is_own):
            yield own
            own = None
        if not is_own:
            yield _said(kind, item, param)
            continue
        own = own or {"role": "assistant", "content": ""}
        _add(own, kind, item, param)
    if own is not None:
        yield own


def _has_spoken(own: Mapping[str, Any]) -> bool:
    return bool(own["content"] or own.get("tool_calls"))


def _said(kind: str, item: InputItem, param: str) -> Message:
    """Return a message to the model."""
    if kind == "function_call_output":
        text = text_of(item.output, f"{param}.output")
        return {"role": "tool", "tool_call_id": item.call_id or "", "content": text}
    if kind != "message" or item.role is None:
        message = f"{param} has the type {kind!r} and the role {item.role!r}, which is not known."
        raise bad_request(message, param, "invalid_value")
    return {"role": item.role, "content": text_of(item.content, f"{param}.content")}


def _add(own: Message, kind: str, item: InputItem, param: str) -> None:
    """Add an item to a message of the model's."""
    if kind == "reasoning":
        thought = text_of(item.content or item.summary, f"{param}.content")
        own["reasoning_content"] = thought or None
    elif kind == "function_call":
        function = {"name": item.name or "", "arguments": item.arguments or "{}"}
        call = {"id": item.call_id or "", "type": "function", "function": function}
        own["tool_calls"] = [*own.get("tool_calls", ()), call]
    else:
        own["content"] = text_of(item.content, f"{param}.content")


def _tool(place: int, tool: FunctionTool) -> dict[str, Any]:
    if tool.type != "function":
        message = f"tools[{place}] has the type {tool.type!r}. Only functions are supported here."
        raise bad_request(message, f"tools[{place}].type", "invalid_value")
    named = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": {**named, "parameters": tool.parameters}}


def _response_format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    named = {"name": wanted.name or "answer", "schema": wanted.schema_, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": named}
