"""Pieces spell the bytes they should, and turns end where they should."""

import pytest
from tokenizers import pre_tokenizers

from headlong.text.vocabulary import Pieces, Spelling, find_eos_ids, spelled_bytes


def test_byte_level_alphabet_covers_every_byte_once() -> None:
    letters = pre_tokenizers.ByteLevel.alphabet()
    assert {spelled_bytes(letter, "byte-level") for letter in letters} == {
        bytes([byte]) for byte in range(256)
    }


@pytest.mark.parametrize(
    ("piece", "spelling", "expected"),
    [
        ("Ġhe", "byte-level", b" he"),
        ("Ã©", "byte-level", "é".encode()),
        ("Ċ", "byte-level", b"\n"),
        ("a b", "byte-level", b"a b"),  # a space is no letter of the alphabet: written, not spelled
        ("▁he", "sentencepiece", b" he"),
        ("é", "sentencepiece", "é".encode()),
        ("<0xE9>", "sentencepiece", b"\xe9"),
        ("<0xE9>x", "sentencepiece", b"<0xE9>x"),
        ("", "sentencepiece", b""),
    ],
)
def test_piece_spells_its_bytes(piece: str, spelling: Spelling, expected: bytes) -> None:
    assert spelled_bytes(piece, spelling) == expected


def test_only_special_tokens_end_a_turn() -> None:
    pieces = ["</s>", "<end_of_turn>", "word", "<|im_end|>"]
    assert find_eos_ids(pieces, {1, 3}) == {1, 3}


def test_end_closes_a_turn_only_without_return() -> None:
    assert find_eos_ids(["<|end|>", "x"], {0, 1}) == {0}
    assert find_eos_ids(["<|end|>", "<|return|>"], {0, 1}) == {1}


def test_pieces_come_back_as_they_were_given() -> None:
    given = ["", "Ġhe", "", "é▁\U0001f600", "a", ""]
    pieces = Pieces(given)
    assert (len(pieces), list(pieces)) == (len(given), given)
    assert pieces == Pieces(given)
    assert pieces != Pieces(
        ["Ġhe", "", "", "é▁\U0001f600", "a", ""]
    )  # the same text, cut otherwise
    for outside in (-1, len(given)):
        with pytest.raises(IndexError):
            pieces[outside]
