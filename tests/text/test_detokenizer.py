"""Streaming gives the same text as decoding at once, and never half a character."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.text.detokenizer import Detokenizer
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.weights.checkpoint import open_checkpoint
from tiny_text import byte_level_tokenizer, sentencepiece_tokenizer

TINY = {"byte-level": byte_level_tokenizer(), "sentencepiece": sentencepiece_tokenizer()}


@pytest.fixture(scope="module")
def real(default_model_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(default_model_path))


def stream(tokenizer: Tokenizer, token_ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [*(detokenizer.push(i) for i in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", TINY)
@given(data=st.data(), skip_special=st.booleans())
def test_stream_equals_decode_of_the_whole(
    kind: str, data: st.DataObject, skip_special: bool
) -> None:
    tokenizer = TINY[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    whole = tokenizer.decode(ids, skip_special=skip_special)
    assert "".join(stream(tokenizer, ids, skip_special=skip_special)) == whole


@given(data=st.data())
def test_stream_of_random_real_tokens_equals_decode(real: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, real.vocab_size - 1), max_size=40))
    assert "".join(stream(real, ids)) == real.decode(ids)


@given(text=st.text(st.characters(codec="utf-8", min_codepoint=32, max_codepoint=0x3FFFF)))
def test_stream_of_real_text_never_shows_half_a_character(real: Tokenizer, text: str) -> None:
    pieces = stream(real, real.encode(text, add_special=False, parse_special=False))
    assert "".join(pieces) == text
    assert sum(piece.count("�") for piece in pieces) == text.count("�")


def test_character_over_several_tokens_comes_out_whole() -> None:
    tokenizer = TINY["byte-level"]
    ids = tokenizer.encode("é🙂", add_special=False)
    assert len(ids) == 6
    assert stream(tokenizer, ids) == ["", "é", "", "", "", "🙂", ""]


def test_broken_character_is_replaced_once_it_is_certain() -> None:
    tokenizer = TINY["byte-level"]
    first, _ = tokenizer.encode("é", add_special=False)
    letter = tokenizer.encode("x", add_special=False)[0]
    assert stream(tokenizer, [first, letter]) == ["", "�x", ""]


def test_unfinished_character_is_replaced_at_the_end() -> None:
    tokenizer = TINY["byte-level"]
    ids = tokenizer.encode("🙂", add_special=False)[:3]
    assert stream(tokenizer, ids) == ["", "", "", "�"]


def test_special_tokens_are_shown_only_when_asked_for() -> None:
    tokenizer = TINY["byte-level"]
    ids = tokenizer.encode("h<|im_end|>", add_special=False)
    assert stream(tokenizer, ids) == ["h", "", ""]
    assert stream(tokenizer, ids, skip_special=False) == ["h", "<|im_end|>", ""]


def test_first_space_of_sentencepiece_is_dropped_once() -> None:
    tokenizer = TINY["sentencepiece"]
    ids = tokenizer.encode("a a", add_special=True)
    assert [tokenizer.token_bytes(i) for i in ids[1:]] == [b" a", b" a"]
    assert stream(tokenizer, ids) == ["", "a", " a", ""]


def test_continuation_keeps_its_first_space() -> None:
    tokenizer = TINY["sentencepiece"]
    detokenizer = Detokenizer(tokenizer, is_continuation=True)
    assert detokenizer.push(tokenizer.encode("a", add_special=False)[0]) == " a"
