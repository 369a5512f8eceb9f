"""One plain choice: text, echo, and log-probabilities in four lists."""

import pytest

from headlong.decode.sampling import TokenLogprob, TopLogprob
from headlong.engine.request import FinishReason
from headlong.generation import Chunk
from headlong.server.choices import TokenDetails
from headlong.server.completions import CompletionChoice, Echo
from headlong.text.tokenizer import Tokenizer
from tiny_text import byte_level_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """All bytes, and a few more."""
    return byte_level_tokenizer()


def make(tokenizer: Tokenizer, text: str, end: FinishReason | None = None) -> Chunk:
    """A chunk of one token that has the letter "h" as its alternative."""
    (token_id,) = tokenizer.encode(text, add_special=False)
    (other,) = tokenizer.encode("h", add_special=False)
    top = (TopLogprob(token_id, -0.2), TopLogprob(other, -2.0))
    logprob = TokenLogprob(token_id, -0.2, top)
    return Chunk(text, (token_id,), False, "backbone", 0, logprob, end)


def test_offsets_go_on_from_piece_to_piece(tokenizer: Tokenizer) -> None:
    wants = TokenDetails(logprobs=True, sources=False, token_ids=False)
    choice = CompletionChoice(2, wants, tokenizer)
    pieces = choice.pieces([make(tokenizer, "he"), make(tokenizer, "ll")])
    pieces += choice.pieces([make(tokenizer, "o", FinishReason.LENGTH)])
    assert [piece["text"] for piece in pieces] == ["hell", "o", ""]
    assert [piece["finish_reason"] for piece in pieces] == [None, None, "length"]
    assert pieces[0]["logprobs"] == {
        "tokens": ["he", "ll"],
        "token_logprobs": [-0.2, -0.2],
        "top_logprobs": [{"he": -0.2, "h": -2.0}, {"ll": -0.2, "h": -2.0}],
        "text_offset": [0, 2],
    }
    assert pieces[1]["logprobs"]["text_offset"] == [4]


def test_offsets_count_characters_of_many_tokens_once(tokenizer: Tokenizer) -> None:
    wants = TokenDetails(logprobs=True, sources=False, token_ids=False)
    ids = tokenizer.encode("\N{SNOWMAN}o", add_special=False)
    assert len(ids) == 4
    chunks = [
        Chunk(text, (token_id,), False, "backbone", 0, TokenLogprob(token_id, -0.2, ()), end)
        for text, token_id, end in zip(
            ["", "", "\N{SNOWMAN}", "o"], ids, [None] * 3 + [FinishReason.STOP], strict=True
        )
    ]
    whole = CompletionChoice(0, wants, tokenizer).whole(chunks)
    assert whole["text"] == "\N{SNOWMAN}o"
    assert whole["logprobs"]["text_offset"] == [0, 0, 0, 1]


def test_echo_comes_first(tokenizer: Tokenizer) -> None:
    wants = TokenDetails(logprobs=False, sources=False, token_ids=False)
    chunks = [make(tokenizer, "o", FinishReason.STOP)]
    assert CompletionChoice(0, wants, tokenizer, Echo("hell")).whole(chunks)["text"] == "hello"
    opening = CompletionChoice(0, wants, tokenizer, Echo("hell")).opening()
    assert opening is not None
    assert opening["text"] == "hell"
    assert CompletionChoice(0, wants, tokenizer).opening() is None


def test_held_back_text_sends_nothing(tokenizer: Tokenizer) -> None:
    wants = TokenDetails(logprobs=False, sources=False, token_ids=False)
    assert CompletionChoice(0, wants, tokenizer).pieces([Chunk("", (1,), False, "x", 0)]) == []
