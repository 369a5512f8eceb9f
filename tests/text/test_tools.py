"""Tools are checked at the door, and put into words for templates that have none."""

from typing import Any

import pytest

from headlong.errors import RequestError
from headlong.text.tools import (
    HERMES,
    ToolStyle,
    check_choice,
    check_tools,
    describe_tools,
    named_tools,
    spell_calls,
    spell_results,
    style_of,
)

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}},
}
NOW = {"type": "function", "function": {"name": "now"}}


def test_tools_are_known_by_name_with_schemas_of_objects() -> None:
    tools = check_tools([ADD, NOW])
    assert list(tools) == ["add", "now"]
    assert tools["add"] == {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert tools["now"] == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([], "at least one"),
        ("x", "tools is 'x'"),
        ([{"name": "add"}], "Tool 0 is"),
        ([ADD, "x"], "Tool 1 is 'x'"),
        ([{"type": "code", "function": {"name": "f"}}], "Tool 0 is"),
        ([{"function": {"name": "a b"}}], "name 'a b'"),
        ([{"function": {"name": ""}}], "name ''"),
        ([{"function": {}}], "name None"),
        ([ADD, ADD], "Two tools are called 'add'"),
        ([{"function": {"name": "f", "parameters": {"type": "array"}}}], "parameters of tool 'f'"),
        ([{"function": {"name": "f", "parameters": 5}}], "parameters of tool 'f'"),
    ],
)
def test_what_is_no_tool_is_refused(tools: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        check_tools(tools)


def test_choice_narrows_the_tools() -> None:
    tools = check_tools([ADD, NOW])
    choice = {"type": "function", "function": {"name": "now"}}
    assert list(named_tools(tools, choice)) == ["now"]
    assert list(named_tools(tools, "auto")) == ["add", "now"]
    assert check_choice(None, tools) == "auto"


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("any", "tool_choice is 'any'"),
        ({"type": "function"}, "tool_choice is"),
        ({"type": "function", "function": {"name": "sub"}}, "names 'sub'.*add, now"),
        (5, "tool_choice is 5"),
    ],
)
def test_unknown_choice_is_refused(choice: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        check_choice(choice, check_tools([ADD, NOW]))


def test_style_is_read_off_the_template() -> None:
    assert style_of("… within <tool_call></tool_call> XML tags") == HERMES
    assert style_of('{"name": function name, "parameters": dictionary}').arguments_key == (
        "parameters"
    )
    assert style_of("{{ tools }}") == ToolStyle("", "", "arguments")


def test_tools_are_described_in_the_system_message() -> None:
    user = {"role": "user", "content": "hi"}
    made = describe_tools([user], [ADD])
    assert [message["role"] for message in made] == ["system", "user"]
    assert '"name": "add"' in made[0]["content"]
    assert '<tool_call>\n{"name": "<function name>"' in made[0]["content"]
    system = {"role": "system", "content": "Be brief."}
    extended = describe_tools([system, user], [ADD])
    assert extended[0]["content"] == f"Be brief.\n\n{made[0]['content']}"
    assert system["content"] == "Be brief."  # the caller's stays


def test_calls_are_spelled_the_way_they_are_asked_for() -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": {"a": "é"}}}
    spelled = spell_calls(
        [
            {"role": "assistant", "content": "", "tool_calls": [call, call]},
            {"role": "assistant", "content": "So.", "tool_calls": [call]},
            {"role": "assistant", "content": "Done."},
        ]
    )
    text = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'
    assert spelled == [
        {"role": "assistant", "content": f"{text}\n{text}"},
        {"role": "assistant", "content": f"So.\n{text}"},
        {"role": "assistant", "content": "Done."},
    ]


def test_results_become_one_message_of_the_user() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    user = {"role": "user", "content": "hi"}
    text = "<tool_response>\n3\n</tool_response>"
    assert spell_results([user, result, result, user, result]) == [
        user,
        {"role": "user", "content": f"{text}\n{text}"},
        user,
        {"role": "user", "content": text},
    ]
