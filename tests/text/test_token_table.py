"""llguidance sees every token as the bytes it stands for, and forced text as the model cuts it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import normalizers

from headlong.text.folder_vocabulary import read_folder_vocabulary
from headlong.text.token_table import make_token_table
from headlong.text.tokenizer import Tokenizer
from tiny_text import (
    byte_level_tokenizer,
    make_splitter,
    sentencepiece_tokenizer,
    write_folder,
)

TEXTS = ("", "hello 12", '{"abc": "é\\n"}', " ab  c", "<|im_end|></s>", "\x02 \x02")


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_spelled_byte_for_byte(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    ids = make_token_table(tokenizer).tokenize_str(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert not any(map(tokenizer.is_special, ids)), "control tokens in forced text would be forged"


def test_text_is_cut_as_the_model_cuts_it() -> None:
    tokenizer = byte_level_tokenizer()
    text = " hello 12 hell"
    expected = tokenizer.encode(text, add_special=False)
    assert make_token_table(tokenizer).tokenize_str(text) == expected
    assert len(expected) < len(text)


def test_sentencepiece_cuts_the_text_without_a_space_in_front() -> None:
    tokenizer = sentencepiece_tokenizer()
    ids = make_token_table(tokenizer).tokenize_str("b abc")
    assert [tokenizer.token_text(token_id) for token_id in ids] == ["b", " a", "bc"]


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_table_knows_control_tokens_and_the_end(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    table = make_token_table(tokenizer)
    assert table.vocab_size == tokenizer.vocab_size
    assert frozenset(table.eos_tokens) == tokenizer.eos_ids
    for token_id in range(tokenizer.vocab_size):
        if tokenizer.token_bytes(token_id) == b"\xff":
            continue  # no UTF-8 text has it; llguidance marks control tokens with it
        assert table.is_special_token(token_id) == tokenizer.is_special(token_id)


def test_text_the_tokenizer_would_change_is_spelled_all_the_same(tmp_path: Path) -> None:
    splitter = make_splitter()
    splitter.normalizer = normalizers.Lowercase()
    folder = write_folder(tmp_path, splitter, tokenizer_config={"eos_token": "<|im_end|>"})
    tokenizer = Tokenizer(read_folder_vocabulary(folder, {}))
    ids = make_token_table(tokenizer).tokenize_str("HE he")
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"HE he"
    assert len(ids) == 4  # "he" is a token, "HE" is not
