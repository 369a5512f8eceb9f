"""A grammar begins behind the reasoning; inside it the model may say anything."""

from typing import Any

import pytest

from headlong.text.grammar import TokenGrammar, json_schema_grammar, tool_call_grammar
from headlong.text.reasoning import KNOWN_TAGS, Beginning, Reasoning
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer
from headlong.text.tools import ToolChoice
from tiny_text import byte_level_tokenizer

THINK = KNOWN_TAGS[0]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
NOW = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BARE = '{"name": "now", "parameters": {}}'
BARE_TEMPLATE = '{{ tools }} Answer {"name": function name, "parameters": dictionary of arguments}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """All bytes."""
    return byte_level_tokenizer()


def verdict(tokenizer: Tokenizer, grammar: TokenGrammar, text: str) -> str:
    """Say "no", or whether the text may "end" or "goes on" behind `text`."""
    state = grammar.begin()
    ids = make_token_table(tokenizer).tokenize_str(text)
    if state.num_allowed(ids) < len(ids):
        return "no"
    mask = state.mask_after(ids)
    assert mask is not None
    return "end" if mask[list(tokenizer.eos_ids)].all() else "goes on"


@pytest.mark.parametrize(
    ("beginning", "text", "expected"),
    [
        (Beginning.REASONING, 'It is {"b"</think>\n\n{"a": 1}', "end"),
        (Beginning.REASONING, 'So.</think>{"a": 1}', "end"),
        (Beginning.REASONING, "thinking on", "goes on"),
        (Beginning.REASONING, "So.</think>No", "no"),
        (Beginning.OPEN, '<think>\nSo.</think>\n{"a": 1}', "end"),
        (Beginning.OPEN, '{"a": 1}', "end"),
        (Beginning.OPEN, "<think>on", "goes on"),
        (Beginning.OPEN, "Well", "no"),
        (Beginning.ANSWER, '{"a": 1}', "end"),
        (Beginning.ANSWER, "<think>", "no"),
    ],
)
def test_json_begins_behind_the_reasoning(
    tokenizer: Tokenizer, beginning: Beginning, text: str, expected: str
) -> None:
    grammar = json_schema_grammar(tokenizer, SCHEMA, Reasoning(THINK, beginning))
    assert verdict(tokenizer, grammar, text) == expected


@pytest.mark.parametrize(
    ("choice", "text", "expected"),
    [
        ("auto", f"<think>Call <tool_call>{{x</think>\n\n{CALL}", "end"),
        ("auto", "<think>Call <tool_call> or not?</think>\nNo.", "end"),
        ("auto", "<think>no end", "goes on"),
        ("auto", "No.", "end"),
        ("auto", f"Let me see. {CALL}", "end"),
        ("auto", "<think>x</think>\n<tool_call>y", "no"),
        ("required", f"<think><tool_call>?</think>\n\n{CALL}", "end"),
        ("required", CALL, "end"),
        ("required", "<think>x</think>No.", "no"),
    ],
)
def test_calls_in_reasoning_are_none(
    tokenizer: Tokenizer, choice: ToolChoice, text: str, expected: str
) -> None:
    reasoning = Reasoning(THINK, Beginning.OPEN)
    grammar = tool_call_grammar(tokenizer, [NOW], choice, reasoning=reasoning)
    assert verdict(tokenizer, grammar, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Hm.</think>\n\n{BARE}", "end"),
        ("Hm.</think>\n\nNo.", "end"),
        ("Hm.</think>", "end"),
        ('Hm.</think>\n\n{"nam', "goes on"),
        ('Hm.</think>\n\n{"x', "no"),
    ],
)
def test_bare_calls_follow_reasoning(text: str, expected: str) -> None:
    bare = byte_level_tokenizer(chat_template=BARE_TEMPLATE)
    reasoning = Reasoning(THINK, Beginning.REASONING)
    grammar = tool_call_grammar(bare, [NOW], parallel=False, reasoning=reasoning)
    assert verdict(bare, grammar, text) == expected


@pytest.mark.parametrize("tags", KNOWN_TAGS)
def test_all_tags_can_be_written_in_a_grammar(tokenizer: Tokenizer, tags: Any) -> None:
    reasoning = Reasoning(tags, Beginning.OPEN)
    grammar = tool_call_grammar(tokenizer, [NOW], reasoning=reasoning)
    assert verdict(tokenizer, grammar, f"{tags.start}x<tool_call>y{tags.closing}{CALL}") == "end"


def test_repeated_call_in_reasoning_does_not_end_the_answer(tokenizer: Tokenizer) -> None:
    """Guards a silent cut: what a model only thinks of calling is no call yet."""
    grammar = tool_call_grammar(tokenizer, [NOW], reasoning=Reasoning(THINK, Beginning.OPEN))
    thought = f"<think>First {CALL}\n{CALL[:-14]}"
    assert verdict(tokenizer, grammar, f"{thought} and so on</think>\n{CALL}\n<tool_") == "goes on"
