"""An answer that repeats a call ends there, whatever tokens it is written with."""

import pytest

from headlong.text.grammar import tool_call_grammar
from headlong.text.grammar_state import GrammarState
from headlong.text.tokenizer import Tokenizer
from tiny_text import byte_level_metadata, byte_level_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}


def call(x: str) -> str:
    """Return a call as a model writes it."""
    return f'<tool_call>\n{{"name": "f", "arguments": {{"x": "{x}"}}}}\n</tool_call>'


def lines(*xs: str) -> str:
    """Return several calls."""
    return "\n".join(map(call, xs))


def begin(tokenizer: Tokenizer) -> GrammarState:
    """Return the state of an answer that may call as often as it likes."""
    return tool_call_grammar(tokenizer, [TOOL]).begin()


def follow(state: GrammarState, tokenizer: Tokenizer, text: str) -> set[str]:
    """Say `text` and return what may come behind it; "" stands for the end."""
    for token_id in tokenizer.encode(text, add_special=False):
        assert state.mask()[token_id], f"{text!r} is not allowed"
        state.push(token_id)
    allowed = [i for i in range(tokenizer.vocab_size) if state.mask()[i]]
    return {"" if i in tokenizer.eos_ids else tokenizer.token_text(i) for i in allowed}


@pytest.mark.parametrize(
    ("said", "must_end"),
    [
        (lines("a"), False),
        (lines("a", "b"), False),
        (lines("a", "aa", "a b"), False),
        (lines("a", "a"), True),
        (lines("a", "b", "a"), True),
        ("Let me see.\n" + lines("a", "a"), True),
        # Text that looks like a border stays an argument.
        (lines(call("a").splitlines()[2], call("a").splitlines()[2] + "!"), False),
        (lines("<tool_call>", "<tool_call>"), True),
    ],
)
def test_word_for_word_repeated_call_is_the_last(said: str, must_end: bool) -> None:
    tokenizer = byte_level_tokenizer()
    expected = {""} if must_end else {"", "\n"}
    assert follow(begin(tokenizer), tokenizer, said) == expected


def test_token_across_the_end_of_a_repeated_call_is_not_allowed() -> None:
    """Guards an answer that slips on: ">" and the next line's break may be one token."""
    metadata = byte_level_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], ">Ċ"]
    kinds = [*metadata["tokenizer.ggml.token_type"], 1]
    tokenizer = byte_level_tokenizer(tokens=tokens, token_type=kinds)
    once, twice = lines("a")[:-1], lines("a", "a")[:-1]
    assert follow(begin(tokenizer), tokenizer, once) == {">", ">\n"}
    assert follow(begin(tokenizer), tokenizer, twice) == {">"}


def test_looking_ahead_sees_the_same_end() -> None:
    """Guards exactness: drafts are verified with masks that were computed ahead."""
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode(lines("a", "a"), add_special=False)
    ahead, settled = begin(tokenizer), begin(tokenizer)
    masks = [ahead.mask_after(ids[:place]) for place in range(len(ids) + 1)]
    for place, mask in enumerate(masks):
        assert mask is not None
        assert (mask == settled.mask()).all(), place
        if place < len(ids):
            settled.push(ids[place])
