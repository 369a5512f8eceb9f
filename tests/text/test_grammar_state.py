"""A grammar's state says the same whether it looked ahead, went back, or just went on."""

import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from headlong.decode.constraint import Constraint, Grammar
from headlong.text.grammar import compile_user_grammar, json_schema_grammar
from headlong.text.grammar_state import GrammarState
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer
from tiny_text import byte_level_tokenizer, sentencepiece_tokenizer

PERSON: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "hello": {"type": "string", "maxLength": 6},
        "n": {"type": "integer", "minimum": 0, "maximum": 1212},
        "tags": {"type": "array", "items": {"enum": ["hell", "he", 12, None]}, "maxItems": 3},
    },
    "required": ["hello", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """All bytes and a few merges."""
    return byte_level_tokenizer()


def begin(tokenizer: Tokenizer, schema: Mapping[str, Any] = PERSON) -> GrammarState:
    """Return the state of a fresh answer."""
    return json_schema_grammar(tokenizer, schema).begin()


def walk(state: GrammarState, rng: random.Random, max_tokens: int = 60) -> list[int]:
    """Say allowed tokens at random until the end."""
    said: list[int] = []
    while len(said) < max_tokens:
        said.append(rng.choice(np.flatnonzero(state.mask()).tolist()))
        state.push(said[-1])
    return said


def test_state_and_grammar_fit_the_protocols(tokenizer: Tokenizer) -> None:
    grammar: Grammar = json_schema_grammar(tokenizer, PERSON)
    state: Constraint = grammar.begin()
    assert state.mask().shape == (tokenizer.vocab_size,)


@pytest.mark.parametrize("seed", range(20))
def test_looking_ahead_changes_nothing(tokenizer: Tokenizer, seed: int) -> None:
    """Guards exactness: what was drafted must leave no trace in the masks of verification."""
    rng = random.Random(seed)
    said = walk(begin(tokenizer), rng)
    plain, nosy = begin(tokenizer), begin(tokenizer)
    for place, token_id in enumerate(said):
        for _ in range(rng.randint(0, 3)):
            true = said[place : place + rng.randint(0, 6)]
            wild = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(0, 2))]
            kind = rng.randrange(3)  # each leaves the parser elsewhere
            if kind == 0:
                nosy.mask_after([*true, *wild])
            elif kind == 1:
                nosy.num_allowed([*true, *wild])
            else:
                nosy.forced()
        assert np.array_equal(plain.mask(), nosy.mask())
        plain.push(token_id)
        nosy.push(token_id)


@pytest.mark.parametrize("seed", range(10))
def test_mask_ahead_is_the_mask_there(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    said = walk(begin(tokenizer), rng)
    ahead, there = begin(tokenizer), begin(tokenizer)
    for place, token_id in enumerate(said):
        mask = ahead.mask_after(said[:place])
        assert mask is not None
        assert np.array_equal(mask, there.mask())
        there.push(token_id)


def test_forbidden_tokens_have_no_mask_behind_them(tokenizer: Tokenizer) -> None:
    state = begin(tokenizer)
    wrong = tokenizer.encode("[", add_special=False)
    assert state.mask_after(wrong) is None
    assert state.num_allowed(wrong) == 0
    assert state.mask().any()


def test_forced_spans_are_what_alone_is_allowed(tokenizer: Tokenizer) -> None:
    state = begin(tokenizer)
    forced = state.forced()
    assert tokenizer.decode(forced) == '{"hello": "'
    for token_id in forced:
        assert np.flatnonzero(state.mask()).tolist() == [token_id]
        state.push(token_id)
    assert state.forced() == []


def test_draft_is_cut_where_the_grammar_ends_it(tokenizer: Tokenizer) -> None:
    draft = tokenizer.encode('{"hello": "12"} he', add_special=False)
    allowed = draft[: begin(tokenizer).num_allowed(draft)]
    assert tokenizer.decode(allowed) == '{"hello": "12"'  # "n" is required


def test_only_the_end_follows_the_end(tokenizer: Tokenizer) -> None:
    state = begin(tokenizer)
    for token_id in tokenizer.encode('{"hello": "", "n": 0}', add_special=False):
        assert not any(state.mask()[eos_id] for eos_id in tokenizer.eos_ids)
        state.push(token_id)
    eos_id = min(tokenizer.eos_ids)
    for _ in range(3):  # with ignore_eos an engine goes on
        assert frozenset(np.flatnonzero(state.mask()).tolist()) == tokenizer.eos_ids
        assert state.num_allowed([eos_id, eos_id]) == 2
        assert state.num_allowed([eos_id, 5]) == 1
        state.push(eos_id)
        assert state.forced() == ()


def test_end_is_drafted_only_where_the_text_may_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode('{"hello": "", "n": 0}', add_special=False)
    eos_id = min(tokenizer.eos_ids)
    assert begin(tokenizer).num_allowed([*ids, eos_id]) == len(ids) + 1
    assert begin(tokenizer).num_allowed([*ids[:-1], eos_id]) == len(ids) - 1
    assert begin(tokenizer).mask_after([eos_id]) is None


def test_sentencepiece_spells_forced_text_exactly() -> None:
    """Guards the space such tokenizers put in front: a forced span must not begin with one."""
    tokenizer = sentencepiece_tokenizer()
    state = begin(tokenizer, {"type": "object", "properties": {"abc": {}}, "required": ["abc"]})
    forced = state.forced()
    assert b"".join(map(tokenizer.token_bytes, forced)).startswith(b'{"abc":')
    assert state.num_allowed(forced) == len(forced)
    for seed in range(5):
        walk(begin(tokenizer), random.Random(seed))


def test_parser_that_gives_up_ahead_is_begun_again(tokenizer: Tokenizer) -> None:
    """A failed look ahead must not fail the answer."""
    state = begin(tokenizer)
    for token_id in tokenizer.encode('{"hello"', add_special=False):
        state.push(token_id)
    before = state.mask()
    state._matcher.consume_token(5)  # what the parser cannot read puts it out of order for good
    assert state._matcher.is_error()
    assert state.forced()
    assert np.array_equal(state.mask(), before)
    state.push(int(np.flatnonzero(state.mask())[0]))


def test_grammar_beyond_the_parsers_bounds_ends_the_answer_with_the_reason(
    tokenizer: Tokenizer,
) -> None:
    limits = LLParserLimits(step_max_items=1, verbose_errors=False)
    grammar = LLMatcher.grammar_from_json_schema({"type": "object"})
    table = make_token_table(tokenizer)

    def make_matcher() -> LLMatcher:
        return LLMatcher(table, grammar, log_level=0, limits=limits)

    vocab_size, eos_ids = tokenizer.vocab_size, tokenizer.eos_ids
    state = GrammarState(make_matcher(), make_matcher, vocab_size, eos_ids)
    ids = tokenizer.encode('{"a": [1, {"b": [2, 3]}]}', add_special=False)
    num_allowed = state.num_allowed(ids)
    assert num_allowed < len(ids)
    for token_id in ids[:num_allowed]:
        state.push(token_id)
    assert set(np.flatnonzero(state.mask())) == set(tokenizer.eos_ids)
    assert not state.forced()
    assert re.search(rf"beyond {num_allowed} tokens: .*Too many items", str(state.lost))


def test_neither_drafts_nor_earlier_answers_decide_where_an_answer_is_lost(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of a parser share what they have spent of its bounds (found by bench/attack.py)."""
    monkeypatch.setattr("headlong.text.grammar.MAX_STATES", 300)
    grammar = compile_user_grammar(
        tokenizer, "start: /[a-z ]{5}([a-z ]*e[a-z ]{90}c|[a-z ]*s[a-z ]{90}d)/", None
    )
    letters = random.Random(1).choices("es xyz", k=400)
    ids = tokenizer.encode("abcde" + "".join(letters), add_special=False)

    def lost_after(num_ahead: int) -> int:
        state = grammar.begin()
        for place, token_id in enumerate(ids):
            for stop in range(place, min(place + num_ahead, len(ids))):
                state.mask_after(ids[place:stop])
            if not state.mask()[token_id]:
                return place
            state.push(token_id)
        raise AssertionError("the bound was not reached")

    alone = lost_after(0)
    assert alone > 5
    assert [lost_after(num_ahead) for num_ahead in (0, 4, 1, 0)] == [alone] * 4
