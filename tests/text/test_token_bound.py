"""The bound is never above the truth, and close enough to spare hopeless texts the counting."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headlong.text.token_bound import TokenBound
from headlong.text.tokenizer import Tokenizer, load_tokenizer
from headlong.weights.checkpoint import open_checkpoint
from tiny_text import byte_level_tokenizer, sentencepiece_tokenizer

TEXTS = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(" \n-=a1e\u0301\u0958▁<|im_start|>"),
    ),
    max_size=120,
)


@pytest.fixture(scope="module")
def vocabularies(default_model_path: Path) -> list[Tokenizer]:
    """The real one, and tiny ones of every spelling, one that composes characters first."""
    real = load_tokenizer(open_checkpoint(default_model_path))
    return [real, byte_level_tokenizer(), sentencepiece_tokenizer(), composing_tokenizer()]


def composing_tokenizer() -> Tokenizer:
    return byte_level_tokenizer(**{"tokenizer.ggml.pre": "qwen2"})


@given(text=TEXTS)
@example(text="e\u0301" * 60)
@example(text="=" * 200 + " " * 300 + "<|im_start|>" * 20)
@example(text="internationalization" * 30)
@example(text="hellhellhell")
def test_no_text_has_fewer_tokens(vocabularies: list[Tokenizer], text: str) -> None:
    for tokenizer in vocabularies:
        assert tokenizer.min_num_tokens(text) <= len(tokenizer.encode(text, add_special=False))


def test_each_kind_of_bytes_is_counted_apart() -> None:
    letters = [bytes([byte]) for byte in b"ab1-"]
    bound = TokenBound([*letters, b"----------", b"aba", b"", "é".encode()])
    assert bound.min_num_tokens("ab" * 30) == 20
    assert bound.min_num_tokens("1" * 30) == 30
    assert bound.min_num_tokens("-" * 30) == 3
    assert bound.min_num_tokens("-" * 30 + "ab" * 30 + "1" * 25) == 25
    assert bound.min_num_tokens("z" * 25) == 2, "nobody knows this letter, so it may be left out"
    assert bound.min_num_tokens("é" * 25) == 2, "nor its bytes alone"
    assert bound.min_num_tokens("") == 0


def test_prose_is_bounded_closely(vocabularies: list[Tokenizer]) -> None:
    """Guards the text thread: by the longest token alone, 600,000 characters would be read."""
    text = "It was the best of times, it was the worst of times. " * 100
    assert vocabularies[0].min_num_tokens(text) > len(text) / 40


def test_half_a_surrogate_pair_is_bounded_too(vocabularies: list[Tokenizer]) -> None:
    for tokenizer in vocabularies:
        assert tokenizer.min_num_tokens("a\ud800") <= 2
