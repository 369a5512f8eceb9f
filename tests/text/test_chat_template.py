"""Messages reach the template checked, and the template that fits is used."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headlong.errors import TextError
from headlong.text.chat_template import ChatOptions, ChatTemplate
from headlong.text.tools import HERMES, ToolStyle
from tiny_text import CHATML

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "description": "é <b>"}}
SHOW = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"


def render(template: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    made = ChatTemplate({"default": template}, {"bos_token": "<s>"})
    return made.render(messages, ChatOptions(**options)).text


def test_named_tokens_are_there_for_the_template() -> None:
    assert render("{{ bos_token }}{{ eos_token }}.", HELLO) == "<s>."


def test_generation_prompt_is_on_by_default() -> None:
    assert render(CHATML, HELLO).endswith("<|im_start|>assistant\n")
    assert not render(CHATML, HELLO, add_generation_prompt=False).endswith("assistant\n")


def test_tools_are_written_as_plain_json() -> None:
    written = render(
        "{% for t in tools %}{{ t.function | tojson }}{% endfor %}", HELLO, tools=[TOOL]
    )
    assert written == '{"name": "add", "description": "é <b>"}'


def test_template_for_tools_is_chosen_when_tools_are_given() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }}"}, {})
    assert template.render(HELLO).text == "plain"
    assert template.render(HELLO, ChatOptions(tools=[TOOL])).text == "1"
    assert template.render(HELLO, ChatOptions(tools=[])).text == "plain"


def test_tools_without_a_place_are_described_in_words() -> None:
    written = render(CHATML, HELLO, tools=[TOOL])
    assert written.startswith("<|im_start|>system\n")
    assert '{"name": "add", "description": "é <b>"}' in written
    assert written.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


CALLED: list[Mapping[str, Any]] = [
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "2"},
]


def test_calls_and_results_without_a_place_become_text() -> None:
    """Guards a silent loss: a template that prints contents alone would leave the calls out."""
    assert render(SHOW, CALLED) == (
        '[user|hi][assistant|<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>]'
        "[user|<tool_response>\n2\n</tool_response>]"
    )


def test_template_that_knows_tools_gets_them_as_they_are() -> None:
    knowing = (
        "{% for m in messages %}{% if m.role == 'tool' %}={{ m.content }}"
        "{% elif m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}"
    )
    assert render(knowing, CALLED) == "add=2"


def test_style_of_calls_is_the_templates_own() -> None:
    def style(**templates: str) -> ToolStyle:
        return ChatTemplate(templates, {}).tool_style

    assert style(default=SHOW) == HERMES
    assert style(default="{{ tools }} within <tool_call></tool_call>") == HERMES
    assert style(default=SHOW, tool_use='{{ tools }} "parameters": ').arguments_key == "parameters"


def test_no_default_among_several_is_refused_with_their_names() -> None:
    with pytest.raises(TextError, match="rag, tool_use"):
        ChatTemplate({"rag": "r", "tool_use": "t"}, {}).render(HELLO)


def test_only_template_is_used_whatever_its_name() -> None:
    assert ChatTemplate({"rag": "r"}, {}).render(HELLO).text == "r"


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(SHOW, [{"role": "user", "content": parts}]) == "[user|a\nb]"


def test_developer_is_system_unless_the_template_knows_better() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render(SHOW, messages) == "[system|x]"
    assert render(SHOW + "{# developer #}", messages) == "[developer|x]"


def test_tool_calls_reach_the_template_as_objects() -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    template = (
        "{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert render(template, [message]) == '{"a": 1}'
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}  # the caller's stays


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "x"}, "Message 1 has no role"),
        ({"role": "usr", "content": "x"}, "the role 'usr'"),
        ({"role": "user"}, "content None"),
        ({"role": "user", "content": 3}, "content 3"),
        ({"role": "user", "content": []}, r"content \[\]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "part of type 'image_url'"),
        ({"role": "user", "content": ["x"]}, "part of type 'str'"),
        ({"role": "assistant", "tool_calls": 5}, "tool_calls 5"),
        ({"role": "assistant", "tool_calls": ["f"]}, "tool call 'f'"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}, "not JSON"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]},
            "not JSON",
        ),
        ("hello", "Message 1 is 'hello'"),
    ],
)
def test_malformed_message_is_refused_with_its_place(message: Any, reason: str) -> None:
    with pytest.raises(TextError, match=reason):
        render(SHOW, [{"role": "user", "content": "first"}, message])


def test_no_messages_are_refused() -> None:
    with pytest.raises(TextError, match="no messages"):
        render(SHOW, [])


def test_objection_of_a_template_is_passed_on() -> None:
    with pytest.raises(TextError, match="Roles must alternate!"):
        render("{{ raise_exception('Roles must alternate!') }}", HELLO)


def test_broken_template_does_not_hurt_until_used() -> None:
    template = ChatTemplate({"default": "{% for"}, {})
    with pytest.raises(TextError, match="not valid"):
        template.render(HELLO)
