"""Pre-tokenizers cut text as the models' own tokenizers do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from headlong.errors import TextError
from headlong.text.pre_tokenizer import find_pre_tokenizer


def cut(name: str, text: str) -> list[str]:
    """Cut a text; the pieces are spelled byte by byte, so a space shows as Ġ."""
    cutter = find_pre_tokenizer(name).make_pre_tokenizer()
    return [piece for piece, _ in cutter.pre_tokenize_str(text)]


@given(st.text(max_size=40))
def test_smollm_cuts_as_hugging_face_defines_it(text: str) -> None:
    """The model's tokenizer.json: single digits first, then GPT-2's own pattern."""
    theirs = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    assert cut("smollm", text) == [piece for piece, _ in theirs.pre_tokenize_str(text)]


@given(st.text(max_size=40))
def test_gpt2_cuts_as_the_library_does(text: str) -> None:
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    assert cut("gpt-2", text) == [piece for piece, _ in theirs.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "ĠDON", "'", "T"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠDON", "'", "T"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠDON", "'T"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "ĠDON", "'T"]),
        ("gpt-4o", ["It's", "Ġ", "123", "45", "ĠDON'T"]),
        ("tekken", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠDON", "'T"]),
        ("default", ["It", "'", "s", "Ġ", "123", "45", "ĠDON", "'", "T"]),
    ],
)
def test_each_family_cuts_digits_and_contractions_its_own_way(
    name: str, expected: list[str]
) -> None:
    assert cut(name, "It's 12345 DON'T") == expected


def test_unknown_name_is_refused_with_its_value() -> None:
    with pytest.raises(TextError, match="'brand-new'") as refusal:
        find_pre_tokenizer("brand-new")
    assert "tokenizer.json" in refusal.value.remedy


def test_missing_name_is_refused() -> None:
    with pytest.raises(TextError, match="is missing"):
        find_pre_tokenizer(None)
