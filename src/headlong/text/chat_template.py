"""Chat templates: from messages to the one text a model was trained to answer.

In:  messages and tools shaped as in OpenAI's API.
Out: the prompt text, written by the template that came with the model.
Checks messages before the template sees them, since templates print what they are given: a
misspelled role or a missing content would silently reach the model. What a template has no
place for (tools, calls, results) is put into words it can print.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headlong.errors import TextError
from headlong.text.template_sandbox import BoundedTemplate
from headlong.text.tools import (
    HERMES,
    ToolStyle,
    describe_tools,
    spell_calls,
    spell_results,
    style_of,
)
from headlong.text.written_chat import ControlMarker, WrittenChat

ROLES = ("system", "developer", "user", "assistant", "tool")

_TOOL_ROLE = re.compile(r"""['"]tool['"]""")


class ChatTemplate:
    """The chat templates of one model; each is compiled when first used."""

    def __init__(
        self,
        templates: Mapping[str, str],
        named_tokens: Mapping[str, str],
        control_tokens: Iterable[str] = (),
    ) -> None:
        if not templates:
            raise ValueError("a ChatTemplate needs at least one template")
        self._sources = dict(templates)
        self._named_tokens = dict(named_tokens)
        self._marker = ControlMarker(control_tokens)
        self._compiled: dict[str, BoundedTemplate] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> WrittenChat:
        """Write the messages the way the model expects them."""
        name = self._choose(has_tools=bool(tools))
        template = self._compile(name)
        source = self._sources[name]
        checked = [_check_message(i, m, "developer" in source) for i, m in enumerate(messages)]
        if not checked:
            raise TextError("There are no messages.", "Give at least one, with role 'user'.")
        (checked, tools), marks = self._marker.mark((checked, tools))
        if tools and "tools" not in template.variables:
            checked = describe_tools(checked, tools)
        if "tool_calls" not in source:
            checked = spell_calls(checked)
        if not _TOOL_ROLE.search(source):
            checked = spell_results(checked)
        variables = {
            "messages": checked,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return WrittenChat(template.render({**self._named_tokens, **variables}), marks)

    @property
    def tool_style(self) -> ToolStyle:
        """How the model writes tool calls: its template's own way, else the one we describe."""
        name = self._choose(has_tools=True)
        knows_tools = "tools" in self._compile(name).variables
        return style_of(self._sources[name]) if knows_tools else HERMES

    def _choose(self, *, has_tools: bool) -> str:
        if has_tools and "tool_use" in self._sources:
            return "tool_use"
        if "default" in self._sources:
            return "default"
        if len(self._sources) == 1:
            return next(iter(self._sources))
        names = ", ".join(sorted(self._sources))
        raise TextError(
            f"The model has several chat templates ({names}) and none is called 'default'.",
            "Give a plain prompt, or name one of them 'default' in tokenizer_config.json.",
        )

    def _compile(self, name: str) -> BoundedTemplate:
        if name not in self._compiled:
            self._compiled[name] = BoundedTemplate(self._sources[name])
        return self._compiled[name]


def _check_message(position: int, message: object, knows_developer: bool) -> dict[str, Any]:
    """Return a message as templates expect it, or refuse it."""
    if not isinstance(message, Mapping):
        problem = f"Message {position} is {message!r}."
        raise TextError(problem, "A message is a record with 'role' and 'content'.")
    role = message.get("role")
    if role not in ROLES:
        stated = f"has the role {role!r}" if "role" in message else "has no role"
        raise TextError(f"Message {position} {stated}.", f"Use one of: {', '.join(ROLES)}.")
    if role == "developer" and not knows_developer:
        role = "system"  # OpenAI's newer name for it
    checked = {**message, "role": role}
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            problem = f"Message {position} has the tool_calls {calls!r}."
            raise TextError(problem, "tool_calls is a list of calls.")
        checked["tool_calls"] = [_check_tool_call(position, call) for call in calls]
    checked["content"] = _check_content(position, message.get("content"), has_calls=bool(calls))
    return checked


def _check_content(position: int, content: object, *, has_calls: bool) -> str:
    """Return a message's text; a list of text parts is joined by line breaks."""
    if content is None and has_calls:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or not content:
        problem = f"Message {position} has the content {content!r}."
        raise TextError(problem, "Content is a text, or a list of text parts.")
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            problem = f"Message {position} has a part of type {kind!r}."
            raise TextError(problem, "Only text parts can be read; leave out the others.")
        texts.append(text)
    return "\n".join(texts)


def _check_tool_call(position: int, call: object) -> dict[str, Any]:
    """Return a tool call with its arguments as an object: templates write them as JSON again."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        problem = f"Message {position} has the tool call {call!r}."
        raise TextError(problem, "A tool call has a 'function' with 'name' and 'arguments'.")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:  # the latter for brackets without end
            problem = f"Message {position} calls a tool with arguments that are not JSON: {error}."
            raise TextError(problem, "Write the arguments as a JSON object.") from error
    return {**call, "function": {**function, "arguments": arguments}}
