"""What a request says about JSON and tools becomes one form, or is refused."""

from typing import Any

import pytest

from headlong.errors import RequestError
from headlong.text.grammar import json_schema_grammar, tool_call_grammar
from headlong.text.json_schemas import ANY_OBJECT
from headlong.text.output_constraint import read_constraint
from tiny_text import byte_level_tokenizer

TOOLS = [{"type": "function", "function": {"name": "now"}}]
OBJECT = {"type": "json_object"}


def test_nothing_said_is_free_text() -> None:
    form = read_constraint({"tools": None, "response_format": None, "temperature": 1})
    assert form.tools is None
    assert form.make_grammar(byte_level_tokenizer()) is None


def test_response_format_names_the_grammar() -> None:
    tokenizer, schema = byte_level_tokenizer(), {"const": "hello"}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    wanted = read_constraint({"response_format": named}).make_grammar(tokenizer)
    assert wanted is json_schema_grammar(tokenizer, schema)
    assert read_constraint({"response_format": {"type": "text"}}).make_grammar(tokenizer) is None


def test_each_wish_has_its_grammar() -> None:
    tokenizer = byte_level_tokenizer()
    wanted = read_constraint({"response_format": OBJECT}).make_grammar(tokenizer)
    assert wanted is json_schema_grammar(tokenizer, ANY_OBJECT)
    called = read_constraint({"tools": TOOLS, "parallel_tool_calls": False}).make_grammar(tokenizer)
    assert called is tool_call_grammar(tokenizer, TOOLS, "auto", parallel=False)
    both = read_constraint({"tools": TOOLS, "tool_choice": "required", "response_format": OBJECT})
    assert both.make_grammar(tokenizer) is tool_call_grammar(
        tokenizer, TOOLS, "required", answer_schema={"type": "object"}
    )


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    form = read_constraint({"tools": TOOLS, "tool_choice": "none"})
    assert form.tools is None
    assert form.make_grammar(byte_level_tokenizer()) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tool_choice": "required"}, "no tools"),
        ({"tool_choice": {"function": {"name": "f"}}}, "names 'f'.*no tool was given"),
        ({"tools": 5}, "tools is 5"),
        ({"response_format": {"type": "yaml"}}, "response_format is"),
        ({"response_format": {}}, "response_format is"),
        ({"response_format": {"type": "json_schema"}}, "response_format is"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format is"),
        ({"response_format": "x"}, "response_format is"),
    ],
)
def test_impossible_wishes_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read_constraint(options)
