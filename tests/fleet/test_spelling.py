"""Spelling text with tokens, to the letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.errors import GarbledError
from headlong.fleet.spelling import Speller
from headlong.text.tokenizer import Tokenizer
from tiny_text import byte_level_tokenizer, sentencepiece_tokenizer

BYTES, PIECES = byte_level_tokenizer(), sentencepiece_tokenizer()


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES])
@given(text=st.text(max_size=12))
def test_spelled_text_reads_the_same(tokenizer: Tokenizer, text: str) -> None:
    ids = Speller(tokenizer).spell(text)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert not any(map(tokenizer.is_special, ids))


def test_long_tokens_are_taken_first() -> None:
    assert len(Speller(BYTES).spell("hell")) == 1


def test_a_number_of_tokens_can_be_asked_for() -> None:
    speller = Speller(BYTES)
    for num_tokens in (1, 2, 3, 4):
        ids = speller.spell_in("hell", num_tokens)
        assert ids is not None
        assert len(ids) == num_tokens
        assert BYTES.decode(ids) == "hell"
    assert speller.spell_in("hell", 5) is None
    assert speller.spell_in("", 0) == ()


def test_cut_characters_have_as_many_tokens_as_wanted() -> None:
    speller = Speller(BYTES)
    assert speller.spell_cut(4) is None
    ids = speller.spell_cut(3)
    assert ids is not None
    assert BYTES.decode(ids) == "\N{REPLACEMENT CHARACTER}"


def test_what_no_token_spells_is_refused() -> None:
    class Mute(Speller):
        _ids = {b"a": 1}  # noqa: RUF012 # in place of a model that has but one letter

    with pytest.raises(GarbledError, match="No token"):
        Mute(BYTES).spell("ab")
