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
from dataclasses import dataclass, field, replace
from typing import Any

from headlong.errors import TextError
from headlong.text.reasoning import (
    Reasoning,
    ReasoningTags,
    beginning_after,
    beginning_inside,
    close_reasoning,
    template_switches,
)
from headlong.text.rendered_chat import ControlMarker, RenderedChat
from headlong.text.template_sandbox import BoundedTemplate
from headlong.text.tools import (
    HERMES,
    ToolStyle,
    describe_tools,
    spell_calls,
    spell_results,
    style_of,
)

ROLES = ("system", "developer", "user", "assistant", "tool")

_TOOL_ROLE = re.compile(r"""['"]tool['"]""")

_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")
"""What a caller cannot set by `kwargs`: each has an option of its own."""

_HERE = "\uf8ff"
"""A private character that marks where an answer goes on."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How messages are written, besides the messages."""

    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    """End with the words after which the model answers."""
    continue_final_message: bool = False
    """End in the last message instead, which the answer then goes on with."""
    think: bool | None = None
    """Have the model reason before it answers, or not; None leaves it to the template."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables that the template may read, such as `enable_thinking`."""


class ChatTemplate:
    """The chat templates of one model; each is compiled when first used."""

    def __init__(
        self,
        templates: Mapping[str, str],
        named_tokens: Mapping[str, str],
        control_tokens: Iterable[str] = (),
        tags: ReasoningTags | None = None,
    ) -> None:
        """Take templates by name; `tags` are those the model reasons in, if it does."""
        if not templates:
            raise ValueError("a ChatTemplate needs at least one template")
        self.tags = tags
        """What the model reasons in; None if it does not."""
        self._sources = dict(templates)
        self._named_tokens = dict(named_tokens)
        self._marker = ControlMarker(control_tokens)
        self._compiled: dict[str, BoundedTemplate] = {}

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None
    ) -> RenderedChat:
        """Write the messages the way the model expects them."""
        options = options or ChatOptions()
        tools = options.tools
        name = self._choose(has_tools=bool(tools))
        template = self._compile(name)
        source = self._sources[name]
        checked = [_check_message(i, m, "developer" in source) for i, m in enumerate(messages)]
        if not checked:
            raise TextError("There are no messages.", "Give at least one, with role 'user'.")
        kwargs = self._check_kwargs(options, template)
        (checked, tools, kwargs), marks = self._marker.mark((checked, tools, kwargs))
        if options.continue_final_message:
            checked[-1] = _marked_end(checked[-1])
        if tools and "tools" not in template.variables:
            checked = describe_tools(checked, tools)
        if "tool_calls" not in source:
            checked = spell_calls(checked)
        if not _TOOL_ROLE.search(source):
            checked = spell_results(checked)
        variables = {
            "documents": None,
            **kwargs,
            "messages": checked,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": options.add_generation_prompt
            and not options.continue_final_message,
        }
        text = template.render({**self._named_tokens, **variables})
        rendered = RenderedChat(text, marks, warnings=self._warnings(options, template))
        if options.continue_final_message:
            return self._cut_at_end(rendered, checked[-1]["content"])
        return self._with_reasoning(rendered, options)

    def _check_kwargs(self, options: ChatOptions, template: BoundedTemplate) -> dict[str, Any]:
        """Return the template's further variables, or refuse names that are taken."""
        given = options.kwargs
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            problem = f"chat_template_kwargs is {given!r}."
            raise TextError(problem, "Give an object, such as {'enable_thinking': False}.")
        taken = [name for name in given if name in (*_OWN_VARIABLES, *self._named_tokens)]
        if taken:
            problem = f"chat_template_kwargs names {taken[0]!r}, which is not for it to set."
            raise TextError(problem, "Leave it out; messages and tools have fields of their own.")
        return template_switches(options.think, given, template.variables)

    def _warnings(self, options: ChatOptions, template: BoundedTemplate) -> tuple[str, ...]:
        unread = [name for name in options.kwargs if name not in template.variables]
        warnings = [f"The model's chat template does not read {name!r}." for name in unread]
        if options.think and self.tags is None:
            warnings.append("think has no effect: this model does not reason before it answers.")
        return tuple(warnings)

    def _with_reasoning(self, rendered: RenderedChat, options: ChatOptions) -> RenderedChat:
        """Say how the answer begins; end reasoning that a template opens though it is not wanted.

        A template without a switch opens it whatever it is told.
        """
        if self.tags is None:
            return rendered
        marked = rendered.marked
        if options.think is False:
            marked = close_reasoning(marked, self.tags)
        reasoning = Reasoning(self.tags, beginning_after(marked, self.tags))
        return replace(rendered, marked=marked, reasoning=reasoning)

    def _cut_at_end(self, rendered: RenderedChat, last: str) -> RenderedChat:
        """End the text where the content of the last message ends."""
        text, found, _ = rendered.marked.rpartition(_HERE)
        if not found:
            raise TextError(
                "The model's chat template does not write the last message as it stands.",
                "Leave continue_final_message out for this model.",
            )
        if self.tags is None:
            return replace(rendered, marked=text)
        content = rendered.unmarked(last).removesuffix(_HERE)
        before = rendered.unmarked(text).removesuffix(content)
        begins = beginning_inside(before, content, self.tags)
        return replace(rendered, marked=text, reasoning=Reasoning(self.tags, begins))

    @property
    def source(self) -> str:
        """The template that is used where there are no tools."""
        return self._sources[self._choose(has_tools=False)]

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


def _marked_end(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose end can be found in what a template writes."""
    if message["role"] != "assistant" or message.get("tool_calls"):
        problem = "continue_final_message was given, but the last message is no answer in words."
        raise TextError(problem, "Let an assistant's message without tool calls be the last one.")
    return {**message, "content": message["content"].replace(_HERE, "") + _HERE}


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
