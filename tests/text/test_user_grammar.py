"""Patterns, choices and grammars of callers hold for the whole answer, or are refused."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.errors import RequestError
from headlong.text.output_constraint import read_constraint
from headlong.text.reasoning import KNOWN_TAGS, Beginning, Reasoning
from tiny_text import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
BEHIND = Reasoning(KNOWN_TAGS[0], Beginning.REASONING)


def allows(response_format: dict[str, Any], text: str, reasoning: Reasoning | None = None) -> bool:
    """Tell whether an answer may be just `text`."""
    form = read_constraint({"response_format": response_format})
    grammar = form.make_grammar(TOKENIZER, reasoning)
    assert grammar is not None
    state = grammar.begin()
    ids = TOKENIZER.encode(text, add_special=False)
    if state.num_allowed(ids) < len(ids):
        return False
    mask = state.mask_after(ids)
    return mask is not None and bool(mask[list(TOKENIZER.eos_ids)].all())


@pytest.mark.parametrize("pattern", ["[a-c]{2,3}", "a/b", r"a\/b", "^ab$", "a\\\\$", "x\ny", "é?"])
def test_pattern_is_that_of_the_whole_answer(pattern: str) -> None:
    for text in ("ab", "abc", "abcd", "a/b", "a\\", "x\ny", "é", "", "a"):
        expected = re.fullmatch(pattern, text) is not None
        assert allows({"type": "regex", "pattern": pattern}, text) == expected, text


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=3), st.text(max_size=6))
def test_choice_allows_just_its_texts(choices: list[str], other: str) -> None:
    wanted = {"type": "choice", "choices": choices}
    assert all(allows(wanted, one) for one in choices)
    assert allows(wanted, other) == (other in choices)


def test_grammar_comes_in_two_notations() -> None:
    for grammar in ('root ::= "a" [0-9]+ end\nend ::= "."', 'start: "a" /[0-9]+/ "."'):
        assert allows({"type": "grammar", "grammar": grammar}, "a12.")
        assert not allows({"type": "grammar", "grammar": grammar}, "a.")


def test_reasoning_comes_before() -> None:
    wanted = {"type": "choice", "choices": ["yes", "no"]}
    assert allows(wanted, "Maybe.</think>\n\nno", BEHIND)
    assert not allows(wanted, "no", BEHIND)


@pytest.mark.parametrize(
    ("response_format", "reason"),
    [
        ({"type": "regex"}, "has the pattern None"),
        ({"type": "regex", "pattern": "("}, "cannot be compiled"),
        ({"type": "regex", "pattern": "((a{1000}){1000}){1000}"}, "prescribes 1000000000"),
        ({"type": "choice", "choices": "yes"}, "has the choices 'yes'"),
        ({"type": "choice", "choices": []}, "has the choices"),
        ({"type": "choice", "choices": ["x" * 30_000]}, "prescribes 30000"),
        ({"type": "grammar", "grammar": "root ::= ("}, "cannot be"),
        ({"type": "grammar", "grammar": "root ::= other"}, "cannot be"),
        ({"type": "grammar", "grammar": "x" * 30_000}, "prescribes 30000"),
    ],
)
def test_what_cannot_be_followed_is_refused(response_format: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read_constraint({"response_format": response_format}).make_grammar(TOKENIZER)


def test_calls_and_a_pattern_do_not_go_together() -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    with pytest.raises(RequestError, match="together with tools"):
        read_constraint({"response_format": {"type": "regex", "pattern": "a"}, "tools": tools})
