"""Tool calls are found however the answer is cut, and nothing else is taken for one."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.text.tool_calls import (
    AnswerParts,
    TextDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallReader,
    ToolCallStart,
    ToolEvent,
    read_answer,
)
from headlong.text.tools import HERMES, ToolStyle

ARGUMENTS = '{"city": "Ro}me \\"<tool_call>", "days": {"n": [1, 2]}}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
BARE = '{"name": "f", "parameters": {"x": 1}}'
BARE_STYLE = ToolStyle("", "", "parameters")
STYLES = (None, HERMES, BARE_STYLE)

ANSWERS = (
    "Hello <b>world</b> <tool",
    "",
    "  spaces stay \n",
    CALL,
    f"Let me look.\n\n{CALL}",
    f"{CALL}\n{CALL}\n",
    f"{CALL} bye",
    " x <tool_call>",
    "<tool_call>{oops}</tool_call>",
    "<tool_call> <tool_call>" + CALL,
    '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{}"}]</tool_call>',
    BARE,
    f"[{BARE}, {BARE}]",
    '{"name": "Bob", "age": 3}',
    '{"age": 3}',
    "[1, 2]",
    BARE[:-3],
    CALL[:60],
    CALL[:20],
)


def feed(pieces: Sequence[str], style: ToolStyle | None = None) -> list[ToolEvent]:
    """Push pieces one by one and flush."""
    reader = ToolCallReader("x", style)
    return [event for piece in pieces for event in reader.push(piece)] + reader.flush()


def join(events: Sequence[ToolEvent]) -> AnswerParts:
    """Put an answer's events together."""
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    starts = [event for event in events if isinstance(event, ToolCallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    calls = []
    for start in starts:
        arguments = [
            event.text
            for event in events[events.index(start) :]
            if isinstance(event, ToolCallArguments) and event.index == start.index
        ]
        calls.append(ToolCall(start.id, start.name, "".join(arguments)))
    return AnswerParts(text, tuple(calls))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_cuts_change_nothing(answer: str, style: ToolStyle | None) -> None:
    whole = read_answer(answer, "x", style)
    for size in (1, 2, 3, 7, 11):
        pieces = [answer[i : i + size] for i in range(0, len(answer), size)]
        assert join(feed(pieces, style)) == whole


@given(st.lists(st.sampled_from([CALL, "<tool_call>", "{", '"name"', "}", " ", "text"])), st.data())
def test_any_mixture_survives_any_cutting(parts: list[str], data: st.DataObject) -> None:
    answer = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[i:j] for i, j in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    found = join(feed(pieces))
    assert found == read_answer(answer, "x")
    if not found.tool_calls:
        assert found.text == answer


def test_call_between_tags_is_read() -> None:
    parts = read_answer(f"Let me look.\n\n{CALL}", "7f")
    assert parts == AnswerParts("Let me look.", (ToolCall("call_7f_0", "get_weather", ARGUMENTS),))


def test_calls_are_counted_and_space_between_them_is_nobodys() -> None:
    parts = read_answer(f"{CALL}\n{CALL}\n", "x")
    assert parts.text == ""
    assert [call.id for call in parts.tool_calls] == ["call_x_0", "call_x_1"]


def test_list_of_calls_is_several() -> None:
    parts = read_answer(ANSWERS[10], "x")
    assert [(call.name, call.arguments) for call in parts.tool_calls] == [("f", "{}"), ("g", "{}")]


@pytest.mark.parametrize("answer", [BARE, f"[{BARE}]", f"\n {BARE}"])
def test_answer_that_is_only_json_is_a_call(answer: str) -> None:
    parts = read_answer(answer, "x")
    assert parts.text == ""
    assert [(call.name, call.arguments) for call in parts.tool_calls] == [("f", '{"x": 1}')]


@pytest.mark.parametrize(
    "answer",
    [
        "<tool_call>{oops}</tool_call>",
        'a <tool_call>\n{"name": "f", "arguments": {oops}}\n</tool_call> b',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "no JSON"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
        "<tool_call>text</tool_call>",
        "I would use <tool_call> here",
        '{"name": "Bob", "age": 3}',
        '{"name": "f", "arguments": {"x": 1}',
        f"Look: {BARE}",
    ],
)
def test_what_is_no_call_stays_text(answer: str) -> None:
    assert read_answer(answer, "x") == AnswerParts(answer, ())


def test_half_a_tag_is_never_shown() -> None:
    reader = ToolCallReader("x")
    assert reader.push("Hi <tool") == [TextDelta("Hi")]
    assert reader.push("_call") == []
    assert reader.push("ing> is") == [TextDelta(" <tool_calling> is")]


def test_text_is_shown_as_soon_as_it_is_certain() -> None:
    reader = ToolCallReader("x", HERMES)
    assert reader.push("{") == []  # may be a call
    assert reader.push('"age') == [TextDelta('{"age')]
    assert reader.push(" 3") == [TextDelta(" 3")]


def test_enforced_arguments_are_passed_on_as_they_are_written() -> None:
    reader = ToolCallReader("x", HERMES)
    assert reader.push('<tool_call>\n{"name": "f", "argu') == []
    assert reader.push('ments": {"a": "}') == [
        ToolCallStart(0, "call_x_0", "f"),
        ToolCallArguments(0, '{"a": "}'),
    ]
    assert reader.push('x"') == [ToolCallArguments(0, 'x"')]
    assert reader.push("}}\n</tool") == [ToolCallArguments(0, "}")]
    assert reader.push("_call>") == []
    assert reader.flush() == []


def test_call_that_nobody_enforces_is_held_until_checked() -> None:
    reader = ToolCallReader("x")
    assert reader.push(CALL[:-1]) == []
    assert reader.push(">") == [
        ToolCallStart(0, "call_x_0", "get_weather"),
        ToolCallArguments(0, ARGUMENTS),
    ]


def test_enforced_call_cut_short_keeps_what_it_has() -> None:
    parts = read_answer('<tool_call>\n{"name": "f", "arguments": {"a": "b', "x", HERMES)
    assert parts == AnswerParts("", (ToolCall("call_x_0", "f", '{"a": "b'),))


@pytest.mark.parametrize(
    ("answer", "style", "text"),
    [
        ("Let me see.\n<tool_call>", HERMES, "Let me see."),
        ('<tool_call>\n{"name": "get_we', HERMES, ""),
        ('<tool_call>\n{"name": "f", "argu', HERMES, ""),
        ("Let me see. <tool_", HERMES, "Let me see."),
        ("if a <", HERMES, "if a <"),
        ('{"na', BARE_STYLE, ""),
        ('{"name": "f", "par', BARE_STYLE, ""),
        (f"[{BARE}, {BARE[:-3]}", BARE_STYLE, ""),
        ("[", BARE_STYLE, ""),
        ('{"name": "Bob", "age"', BARE_STYLE, '{"name": "Bob", "age"'),
        ('{"name": "f", "argu', HERMES, '{"name": "f", "argu'),
        ("I say <tool_call>{", BARE_STYLE, "I say <tool_call>{"),
    ],
)
def test_half_an_enforced_call_is_no_text(answer: str, style: ToolStyle, text: str) -> None:
    """Clients show content: half a tag or half of its JSON must not be there."""
    names = {"f", "get_weather"}
    assert read_answer(answer, "x", style, names, is_cut=True) == AnswerParts(text, ())


def test_call_cut_behind_another_leaves_the_first_alone() -> None:
    for stop in range(1, CALL.index('"arguments"')):
        parts = read_answer(f"{CALL}\n{CALL[:stop]}", "x", HERMES, is_cut=True)
        assert (parts.text, len(parts.tool_calls)) == ("", 1)


def test_names_are_unescaped() -> None:
    name = 'a"é'
    answer = f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {{}}}}\n</tool_call>'
    for style in STYLES:
        assert read_answer(answer, "x", style).tool_calls[0].name == name


@pytest.mark.parametrize("answer", [CALL, BARE, f"[{BARE}, {BARE}]"])
def test_call_of_an_unknown_tool_stays_text(answer: str) -> None:
    """Guards agents: outside a grammar, a model may call what it was never given."""
    assert read_answer(answer, "x", names={"f", "get_weather"}).tool_calls
    assert read_answer(answer, "x", names={"g"}) == AnswerParts(answer, ())
    beside = answer.replace("get_weather", "f").replace('"f"', '"rm"', 1)
    assert read_answer(beside, "x", names={"f"}) == AnswerParts(beside, ())
