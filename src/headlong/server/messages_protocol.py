"""What Anthropic's `/v1/messages` takes, and the chat request it amounts to.

In:  the parsed JSON of a body. Out: a `ChatBody`.
Tool results stand in user messages there and are messages of their own here. An assistant's message
at the end is gone on with.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from headlong.config import MAX_TEMPERATURE
from headlong.server.chat_protocol import ChatBody
from headlong.server.refusal import bad_request
from headlong.server.translation import OpenBody, OpenPart, inner_body, text_of


class ResultPart(OpenPart):
    """A piece of a tool's result."""

    type: str
    text: str | None = None


class Block(ResultPart):
    """A piece of a message: text, thinking, a call of a tool or its result."""

    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None


class InputMessage(OpenPart):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ClientTool(OpenPart):
    """A tool of the client's; Anthropic's own (search, code) are not here."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolUse(OpenPart):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(OpenPart):
    """Whether the model reasons first; a budget has no effect here."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(OpenPart):
    """The schema of an answer in JSON."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(OpenPart):
    """What the answer must look like."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountBody(OpenBody):
    """A conversation whose tokens are counted."""

    model: str | None = Field(None, description="A name that `/v1/models` lists, or `default`.")
    messages: list[InputMessage] = Field(min_length=1)
    system: str | list[Block] | None = None
    tools: Annotated[list[ClientTool], Field(max_length=128)] | None = None
    tool_choice: ToolUse | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="The older name.")

    def to_chat(self, **more: Any) -> ChatBody:
        """Return the chat request this amounts to."""
        system = text_of(self.system, "system")
        messages = [{"role": "system", "content": system}] if system else []
        for place, message in enumerate(self.messages):
            messages += _translated(message, f"messages[{place}]")
        choice, config = self.tool_choice, self.output_config or OutputConfig()
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        is_alone = choice is not None and choice.disable_parallel_tool_use
        fields = {
            "model": self.model,
            "messages": messages,
            "continue_final_message": messages[-1]["role"] == "assistant" or None,
            "tools": [_tool(place, tool) for place, tool in enumerate(self.tools or ())] or None,
            "tool_choice": None if choice is None else _choice(choice),
            "parallel_tool_calls": False if is_alone else None,
            "enable_thinking": thinks,
            "reasoning_effort": config.effort if thinks else None,
            "response_format": _response_format(self.output_format or config.format),
        }
        return inner_body(ChatBody, fields | self.draft_fields() | more)


class MessagesBody(CountBody):
    """A request for a message."""

    max_tokens: int = Field(ge=1, description="New tokens at most.")
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = Field(None, description="Send the answer as server-sent events.")
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE, description="Default: 1.")
    top_p: float | None = Field(None, ge=0, le=1, description="Default: 1.")
    top_k: int | None = Field(None, ge=0, description="Default: 0, which keeps all.")
    metadata: dict[str, Any] | None = Field(None, description="No effect here.")
    seed: int | None = Field(None, description="Same seed, same text; ours, drawn when not given.")

    def to_answer(self) -> ChatBody:
        """Return the chat request this amounts to."""
        stops = [one for one in self.stop_sequences or () if one]
        return self.to_chat(
            max_tokens=self.max_tokens,
            stop=stops or None,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
        )


def _response_format(wanted: OutputFormat | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    named = {"name": "answer", "schema": wanted.schema_, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def _translated(message: InputMessage, param: str) -> Iterator[dict[str, Any]]:
    """Yield the messages that one of Anthropic's amounts to."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if message.role == "assistant":
        yield _answer(message.content, param)
        return
    results = [block for block in message.content if block.type == "tool_result"]
    for block in results:
        text = text_of(block.content, f"{param}.content")
        call_id = block.tool_use_id or ""
        yield {"role": "tool", "tool_call_id": call_id, "content": text}
    rest = [block for block in message.content if block.type != "tool_result"]
    if rest or not results:
        yield {"role": message.role, "content": text_of(rest, f"{param}.content")}


def _answer(blocks: Sequence[Block], param: str) -> dict[str, Any]:
    thoughts = [block.thinking or "" for block in blocks if block.type == "thinking"]
    calls = [
        {
            "id": block.id or "",
            "type": "function",
            "function": {"name": block.name or "", "arguments": json.dumps(block.input or {})},
        }
        for block in blocks
        if block.type == "tool_use"
    ]
    aside = ("thinking", "redacted_thinking", "tool_use")
    text = text_of([block for block in blocks if block.type not in aside], f"{param}.content")
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        said["tool_calls"] = calls
    return said | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {})


def _tool(place: int, tool: ClientTool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        message = f"tools[{place}] has the type {tool.type!r}. Only tools of the client's are here."
        raise bad_request(message, f"tools[{place}].type", "invalid_value")
    function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    return {"type": "function", "function": {**function, "parameters": tool.input_schema}}


def _choice(choice: ToolUse) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return {"any": "required"}.get(choice.type, choice.type)
