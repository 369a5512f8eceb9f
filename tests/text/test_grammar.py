"""Grammars allow exactly what was asked for, and refuse by name what they cannot follow."""

import gc
import json
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headlong.errors import RequestError
from headlong.text import grammar as grammar_module
from headlong.text.grammar import (
    MAX_KEPT,
    TokenGrammar,
    json_schema_grammar,
    response_schema,
    tool_call_grammar,
)
from headlong.text.json_schemas import ANY_OBJECT
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer
from headlong.text.tools import ToolChoice
from tiny_text import CONTROL, byte_level_metadata, byte_level_tokenizer, sentencepiece_tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/place"}, "unit": {"enum": ["c", "f"]}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"place": {"type": "string", "maxLength": 20}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "unit": "c"}}\n</tool_call>'
)
CALL_NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BARE_TEMPLATE = '{{ tools }} Answer {"name": function name, "parameters": dictionary of arguments}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """All bytes, and a chat template without tools."""
    return byte_level_tokenizer()


def verdict(tokenizer: Tokenizer, grammar: TokenGrammar, text: str) -> str:
    """Say "no", or whether the text "may end", "must end" or "goes on" behind `text`."""
    state = grammar.begin()
    ids = make_token_table(tokenizer).tokenize_str(text)
    if state.num_allowed(ids) < len(ids):
        return "no"
    mask = state.mask_after(ids)
    assert mask is not None
    if not all(mask[eos_id] for eos_id in tokenizer.eos_ids):
        return "goes on"
    return "must end" if mask.sum() == len(tokenizer.eos_ids) else "may end"


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "goes on"),
        ("{}", "must end"),
        ('{"a": [1, {"b": null}], "é": "x\\n"}', "must end"),
        ('{\n  "a": 1,\n  "b": [\n    true\n  ]\n}', "must end"),
        ('{"a": 1', "goes on"),
        ("[1]", "no"),
        (" {}", "no"),
        ("{} ", "no"),
        ('{"a":' + "\n" * 2, "no"),
        ("{\n" + " " * 25, "no"),
    ],
)
def test_any_object_is_json_with_bounded_space(
    make: Callable[[], Tokenizer], text: str, expected: str
) -> None:
    tokenizer = make()
    assert verdict(tokenizer, json_schema_grammar(tokenizer, ANY_OBJECT), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": ["x", "y"]}', "must end"),
        ('{"a": 1}', "must end"),
        ('{"b": []}', "no"),  # "a" is required and comes first
        ('{"a": 11}', "no"),
        ('{"a":1}', "no"),
        ('{ "a": 1}', "no"),
        ('{"a": 1, "c": 2}', "no"),
    ],
)
def test_schema_is_followed_on_one_line(tokenizer: Tokenizer, text: str, expected: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "maximum": 10},
            "b": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    assert verdict(tokenizer, json_schema_grammar(tokenizer, schema), text) == expected


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a": {"not": {}}}}, r"at /properties/a/not: Unimplemented"),
        ({"items": {"uniqueItems": True, "type": "array"}}, r"at /items/uniqueItems"),
        (
            {"allOf": [{"type": "string", "format": "date"}, {"format": "colour"}]},
            r"at /allOf/1/format: Unknown format: colour\. Leave it out",
        ),
        ({"properties": {"not": {"type": "strin"}}}, r"at /properties/not/type: .*strin"),
        ({"$defs": {"x": {}}, "$ref": "#/$defs/y"}, "'/\\$defs/y' does not exist"),
        ({"$ref": "http://example.com/x"}, "not present"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "at /minimum: Unsatisfiable"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-ahead"),
        ({"enum": [{1, 2}]}, "not JSON"),
        ({"$ref": "#"}, "cannot be followed beyond 0 tokens"),
        ({"enum": ["x", "y" * 5000]}, "5002 characters at /enum"),
        (
            {"properties": {"a": {}, "b": {"pattern": "^(x(a{100}|[b)]){60}){2}$"}}},
            "prescribes 12244 characters at /properties/b/pattern",
        ),
        ({"const": float("nan")}, "not JSON"),
        ({"x-guidance": {"lenient": True}, "if": {}}, "at /if: Unimplemented"),
    ],
)
def test_schema_it_cannot_follow_is_refused_with_the_place(
    tokenizer: Tokenizer, schema: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        json_schema_grammar(tokenizer, schema)


def test_nested_beyond_reason_is_refused(tokenizer: Tokenizer) -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(RequestError):
        json_schema_grammar(tokenizer, schema)


def test_compiled_grammars_are_kept_and_bounded(tokenizer: Tokenizer) -> None:
    first = json_schema_grammar(tokenizer, {"const": 0})
    assert json_schema_grammar(tokenizer, {"const": 0}) is first
    for number in range(1, MAX_KEPT + 1):
        json_schema_grammar(tokenizer, {"const": number})
    assert json_schema_grammar(tokenizer, {"const": 0}) is not first


def test_tables_go_with_their_tokenizers() -> None:
    """Guards a leak: a table is tens of megabytes."""
    tokenizer = byte_level_tokenizer()
    json_schema_grammar(tokenizer, ANY_OBJECT)
    table = weakref.ref(grammar_module._compilers[tokenizer])
    del tokenizer
    gc.collect()
    assert table() is None


def test_model_without_an_end_is_refused() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.eos_ids = frozenset()
    with pytest.raises(RequestError, match="no end-of-text token"):
        json_schema_grammar(tokenizer, ANY_OBJECT)


@pytest.mark.parametrize(
    ("choice", "parallel", "text", "expected"),
    [
        ("auto", True, "", "may end"),
        ("auto", True, "Hello <b>there", "may end"),
        ("auto", True, "Hello <tool", "may end"),
        ("auto", True, CALL, "may end"),  # or another one
        ("auto", True, f"Let me see.\n{CALL}", "may end"),
        ("auto", True, f"{CALL}\n{CALL_NOW}", "may end"),
        ("auto", True, f"{CALL} bye", "no"),
        ("auto", True, "<tool_call>", "goes on"),
        ("auto", True, '<tool_call>\n{"name": "other', "no"),
        ("auto", True, '<tool_call>\n{"name": "get_weather", "arguments": {"unit', "no"),
        ("auto", True, "<tool_call> I think", "no"),
        ("auto", False, CALL, "must end"),
        ("auto", False, f"{CALL}\n{CALL_NOW}", "no"),
        ("required", True, "", "goes on"),
        ("required", True, "Hello", "no"),
        ("required", True, f"{CALL_NOW}\n{CALL}", "may end"),
        ("required", False, CALL, "must end"),
        ({"type": "function", "function": {"name": "now"}}, True, CALL_NOW, "must end"),
        ({"type": "function", "function": {"name": "now"}}, True, CALL, "no"),
    ],
)
def test_calls_follow_choice_and_schema(
    tokenizer: Tokenizer, choice: ToolChoice, parallel: bool, text: str, expected: str
) -> None:
    grammar = tool_call_grammar(tokenizer, TOOLS, choice, parallel=parallel)
    assert verdict(tokenizer, grammar, text) == expected


def test_calls_end_some_time(tokenizer: Tokenizer) -> None:
    cities = [CALL.replace("Rome", f"Rome{number}") for number in range(16)]
    assert len({*cities}) == 16
    grammar = tool_call_grammar(tokenizer, TOOLS, "required")
    assert verdict(tokenizer, grammar, "\n".join(cities[:15])) == "may end"
    assert verdict(tokenizer, grammar, "\n".join(cities)) == "must end"


@pytest.mark.parametrize(
    ("text", "expected"), [('{"a": 1}', "must end"), (CALL_NOW, "may end"), ("Hello", "no")]
)
def test_answer_beside_tools_can_have_a_schema(
    tokenizer: Tokenizer, text: str, expected: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}
    grammar = tool_call_grammar(tokenizer, TOOLS, "auto", answer_schema=schema)
    assert verdict(tokenizer, grammar, text) == expected


BARE = '{"name": "now", "parameters": {}}'


@pytest.mark.parametrize(
    ("choice", "text", "expected"),
    [
        ("auto", "Hello", "may end"),
        ("auto", BARE, "must end"),
        ("auto", f"[{BARE}, {BARE}]", "must end"),
        ("auto", '{"name": "other', "no"),
        ("auto", "{ }", "no"),
        ("required", BARE, "must end"),
        ("required", CALL_NOW, "no"),
    ],
)
def test_models_without_tags_write_bare_json(choice: ToolChoice, text: str, expected: str) -> None:
    tokenizer = byte_level_tokenizer(chat_template=BARE_TEMPLATE)
    assert verdict(tokenizer, tool_call_grammar(tokenizer, TOOLS, choice), text) == expected


def test_special_tags_are_one_token_and_text_at_once() -> None:
    """Some models have control tokens for the tags: they are forced as such and can be read."""
    metadata = byte_level_metadata()
    tags = ["<tool_call>", "</tool_call>"]
    tokens = [*metadata["tokenizer.ggml.tokens"], *tags]
    kinds = [*metadata["tokenizer.ggml.token_type"], CONTROL, CONTROL]
    tokenizer = byte_level_tokenizer(tokens=tokens, token_type=kinds)
    opening, closing = len(tokens) - 2, len(tokens) - 1
    state = tool_call_grammar(tokenizer, [NOW], "required", parallel=False).begin()
    forced = state.forced()
    assert forced[0] == opening
    assert forced[-1] == closing
    assert tokenizer.decode(forced) == CALL_NOW


def test_names_are_not_taken_for_grammar() -> None:
    tokenizer = byte_level_tokenizer()
    tool = {"type": "function", "function": {"name": "a.b-c:d_1"}}
    state = tool_call_grammar(tokenizer, [tool], "required", parallel=False).begin()
    inner = tokenizer.decode(state.forced()).splitlines()[1]
    assert json.loads(inner) == {"name": "a.b-c:d_1", "arguments": {}}


def test_parameters_it_cannot_follow_name_the_tool(tokenizer: Tokenizer) -> None:
    parameters = {"type": "object", "properties": {"x": {"not": {}}}}
    function: dict[str, Any] = {"name": "f", "parameters": parameters}
    tool = {"type": "function", "function": function}
    with pytest.raises(RequestError, match="Tool 'f' cannot be followed at /properties/x/not"):
        tool_call_grammar(tokenizer, [tool], "required")
    function["strict"] = True
    with pytest.raises(RequestError, match="Tool 'f' cannot be followed at /properties/x/not"):
        tool_call_grammar(tokenizer, [tool])


def test_keyword_it_cannot_follow_is_a_warning_and_the_rest_holds(tokenizer: Tokenizer) -> None:
    """What pydantic makes of a set: `uniqueItems`."""
    tags = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}
    parameters = {"properties": {"tags": tags}, "required": ["tags"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    grammar = tool_call_grammar(tokenizer, [tool, NOW])
    (warning,) = grammar.warnings
    assert warning.startswith("Tool 'f' is followed only in part at /properties/tags/uniqueItems:")
    head = '<tool_call>\n{"name": "f", "arguments": {"tags": ["a"'
    assert verdict(tokenizer, grammar, f"{head}, ") == "goes on"
    assert verdict(tokenizer, grammar, f'{head}, "c') == "no"
    assert tool_call_grammar(tokenizer, TOOLS).warnings == ()


@pytest.mark.parametrize(("strict", "expected"), [(True, "no"), (False, "goes on")])
def test_strict_schemas_are_closed(tokenizer: Tokenizer, strict: bool, expected: str) -> None:
    place = {"type": "object", "properties": {"city": {"type": "string"}}}
    parameters = {"type": "object", "properties": {"at": {"items": place}}}
    function = {"name": "f", "parameters": parameters, "strict": strict}
    grammar = tool_call_grammar(tokenizer, [{"type": "function", "function": function}])
    head = '<tool_call>\n{"name": "f", "arguments": {'
    assert verdict(tokenizer, grammar, f'{head}"at": [{{"city": "x"') == "goes on"
    assert verdict(tokenizer, grammar, f'{head}"at": [{{"land') == expected
    assert verdict(tokenizer, grammar, f'{head}"other') == expected
    schema = response_schema(
        {"type": "json_schema", "json_schema": {"schema": parameters, "strict": strict}}
    )
    assert schema is not None
    answer = json_schema_grammar(tokenizer, schema)
    assert verdict(tokenizer, answer, '{"other') == expected
