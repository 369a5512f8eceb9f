"""Tools: what a model may call, checked; described in text where a chat template lacks tools.

In:  tools, tool choice and messages shaped as in OpenAI's API.
Out: checked tools by name; messages that any chat template can write.
A template that knows tools gets them as they are. For one that does not, they are described in the
system message in the widespread Hermes form, and calls and results become text of the same form.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headlong.errors import RequestError
from headlong.text.json_schemas import closed_schema
from headlong.text.vocabulary import TOOL_TAGS

ToolChoice: TypeAlias = Literal["none", "auto", "required"] | Mapping[str, Any]
"""Whether tools are called: never, if the model decides so, always, or always this one."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """How a model writes a tool call: `{"name": …, "arguments": {…}}`, between tags or bare."""

    opening: str
    """The tag before a call; "" when the answer is nothing but JSON."""
    closing: str
    arguments_key: str


HERMES = ToolStyle(*TOOL_TAGS, arguments_key="arguments")
"""`<tool_call>`, a line of JSON, `</tool_call>`: Hermes, Qwen, and what we teach the others."""


def style_of(template: str) -> ToolStyle:
    """Read off a chat template that knows tools how its model writes calls."""
    if HERMES.opening in template:
        return HERMES
    # Llama 3 says `{"name": function name, "parameters": dictionary of argument name …}`.
    return ToolStyle("", "", "parameters" if '"parameters": ' in template else "arguments")


def check_tools(tools: object) -> dict[str, Mapping[str, Any]]:
    """Return the parameter schemas of tools by name, or refuse what is no tool."""
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise RequestError(f"tools is {tools!r}.", "Give a list of at least one tool.", "tools")
    checked: dict[str, Mapping[str, Any]] = {}
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
            raise RequestError(
                f"Tool {place} is {tool!r}.",
                "A tool is {'type': 'function', 'function': {'name': …, 'parameters': {…}}}.",
                f"tools[{place}]",
            )
        name, param = function.get("name"), f"tools[{place}].function.name"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            remedy = "Use 1 to 64 letters, digits, underscores, dots, colons or dashes."
            raise RequestError(f"Tool {place} has the name {name!r}.", remedy, param)
        if name in checked:
            raise RequestError(f"Two tools are called {name!r}.", "Give each its own name.", param)
        parameters = _check_parameters(name, place, function.get("parameters"))
        checked[name] = closed_schema(parameters) if function.get("strict") else parameters
    return checked


def parameters_param(place: int) -> str:
    """Return the name of the field that holds the parameters of the tool at a place."""
    return f"tools[{place}].function.parameters"


def _check_parameters(name: str, place: int, parameters: object) -> Mapping[str, Any]:
    if parameters is None or parameters == {}:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise RequestError(
            f"The parameters of tool {name!r} are {parameters!r}.",
            "They are a JSON schema of type 'object'.",
            parameters_param(place),
        )
    return {"type": "object", **parameters}


def check_choice(choice: object, tools: Mapping[str, object]) -> ToolChoice:
    """Return a valid tool choice, or refuse it; None stands for "auto"."""
    if choice is None:
        return "auto"
    if choice == "none" or choice == "auto" or choice == "required":
        return choice
    named = choice.get("function") if isinstance(choice, Mapping) else None
    name = named.get("name") if isinstance(named, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(name, str):
        raise RequestError(
            f"tool_choice is {choice!r}.",
            "Use 'none', 'auto', 'required', or {'type': 'function', 'function': {'name': …}}.",
            "tool_choice",
        )
    if name not in tools:
        known = ", ".join(tools) or "no tool was given"
        raise RequestError(f"tool_choice names {name!r}.", f"Known tools: {known}.", "tool_choice")
    return choice


def named_tools(
    tools: Mapping[str, Mapping[str, Any]], choice: ToolChoice
) -> Mapping[str, Mapping[str, Any]]:
    """Return the tools that may be called: all, or the one the choice names."""
    checked = check_choice(choice, tools)
    if isinstance(checked, str):
        return tools
    name = checked["function"]["name"]
    return {name: tools[name]}


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the messages with the tools described in the system message, made if there is none."""
    signatures = "\n".join(_written(tool) for tool in tools)
    text = (
        "You can call functions to help the user. Their signatures are within <tools></tools>:\n"
        f"<tools>\n{signatures}\n</tools>\n"
        "To call a function, answer with its name and arguments as JSON within "
        f"{HERMES.opening}{HERMES.closing}:\n"
        f'{HERMES.opening}\n{{"name": "<function name>", "arguments": {{<arguments>}}}}\n'
        f"{HERMES.closing}"
    )
    described = [dict(message) for message in messages]
    if described and described[0].get("role") == "system":
        described[0]["content"] = f"{described[0]['content']}\n\n{text}"
        return described
    return [{"role": "system", "content": text}, *described]


def spell_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with every assistant's tool calls written into its content."""
    spelled = []
    for message in messages:
        calls = [_spelled_call(call["function"]) for call in message.get("tool_calls") or ()]
        parts = [message["content"], *calls] if message["content"] else calls
        one = {**message, "content": "\n".join(parts) if calls else message["content"]}
        one.pop("tool_calls", None)
        spelled.append(one)
    return spelled


def spell_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with results of tools as a user's message; neighbours share one."""
    spelled: list[dict[str, Any]] = []
    is_open = False
    for message in messages:
        if message["role"] != "tool":
            spelled.append(dict(message))
            is_open = False
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if is_open:
            spelled[-1]["content"] += f"\n{text}"
        else:
            spelled.append({"role": "user", "content": text})
        is_open = True
    return spelled


def _spelled_call(function: Mapping[str, Any]) -> str:
    call = {"name": function.get("name"), "arguments": function.get("arguments", {})}
    return f"{HERMES.opening}\n{_written(call)}\n{HERMES.closing}"


def _written(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)
