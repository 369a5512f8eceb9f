"""One chat choice: deltas while it comes, the same message whole."""

from collections.abc import Sequence
from typing import Any

import pytest

from headlong.decode.sampling import TokenLogprob, TopLogprob
from headlong.engine.request import FinishReason
from headlong.generation import Chunk
from headlong.server.chat import ChatChoice
from headlong.server.choices import TokenDetails
from headlong.text.tokenizer import Tokenizer
from headlong.text.tool_calls import ToolCallReader
from headlong.text.tools import HERMES
from tiny_text import byte_level_tokenizer

PLAIN = TokenDetails(logprobs=False, sources=False, token_ids=False)
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "a"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """All bytes, and a few more."""
    return byte_level_tokenizer()


def chunks_of(
    texts: Sequence[str], end: FinishReason = FinishReason.STOP, logprob: TokenLogprob | None = None
) -> list[Chunk]:
    """One chunk per text; the last one ends the answer."""
    ends = [None] * (len(texts) - 1) + [end]
    return [
        Chunk(text, (i,), i > 0, "head" if i else "backbone", i, logprob, reason)
        for i, (text, reason) in enumerate(zip(texts, ends, strict=True))
    ]


def choice(
    tokenizer: Tokenizer, wants: TokenDetails = PLAIN, *, has_tools: bool = False
) -> ChatChoice:
    """Begin a choice."""
    calls = ToolCallReader("x", HERMES) if has_tools else None
    return ChatChoice(0, wants, tokenizer, calls)


def deltas(streamed: ChatChoice, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
    """Stream chunk by chunk."""
    return [piece for chunk in chunks for piece in streamed.pieces([chunk])]


def test_text_comes_in_deltas_and_ends_by_itself(tokenizer: Tokenizer) -> None:
    pieces = deltas(choice(tokenizer), chunks_of(["Hel", "", "lo"]))
    assert [piece["delta"] for piece in pieces] == [{"content": "Hel"}, {"content": "lo"}, {}]
    assert [piece["finish_reason"] for piece in pieces] == [None, None, "stop"]


def test_a_round_is_one_delta(tokenizer: Tokenizer) -> None:
    pieces = choice(tokenizer).pieces(chunks_of(["Hel", "lo", " you"], FinishReason.LENGTH))
    assert [piece["delta"] for piece in pieces] == [{"content": "Hello you"}, {}]
    assert pieces[-1]["finish_reason"] == "length"


def test_whole_message_has_text_even_if_empty(tokenizer: Tokenizer) -> None:
    whole = choice(tokenizer).whole(chunks_of([""]))
    assert whole["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert whole["finish_reason"] == "stop"


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_call_is_the_same_streamed_and_whole(tokenizer: Tokenizer, size: int) -> None:
    text = "Let me see. " + CALL + "\n" + CALL
    chunks = chunks_of([text[i : i + size] for i in range(0, len(text), size)])
    whole = choice(tokenizer, has_tools=True).whole(chunks)
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "Let me see."
    calls = whole["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "look", "arguments": '{"at": "a"}'},
        {"name": "look", "arguments": '{"at": "a"}'},
    ]
    assert [call["id"] for call in calls] == ["call_x_0", "call_x_1"]
    joined: dict[int, dict[str, Any]] = {}
    pieces = deltas(choice(tokenizer, has_tools=True), chunks)
    for call in (call for piece in pieces for call in piece["delta"].get("tool_calls", ())):
        known = joined.setdefault(call["index"], {**call, "function": {"arguments": ""}})
        arguments = known["function"]["arguments"] + call["function"]["arguments"]
        known["function"] |= {**call["function"], "arguments": arguments}
    assert [{k: v for k, v in call.items() if k != "index"} for call in joined.values()] == calls
    assert pieces[-1]["finish_reason"] == "tool_calls"


def test_call_that_is_cut_ends_by_length(tokenizer: Tokenizer) -> None:
    whole = choice(tokenizer, has_tools=True).whole(chunks_of([CALL[:50]], FinishReason.LENGTH))
    assert whole["finish_reason"] == "length"
    assert whole["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"at"')


@pytest.mark.parametrize("text", ["<tool", '<tool_call>\n{"name": "lo'])
def test_call_cut_before_its_name_ends_shows_nothing(tokenizer: Tokenizer, text: str) -> None:
    chunks = chunks_of(["Well.", *text], FinishReason.LENGTH)
    whole = choice(tokenizer, has_tools=True).whole(chunks)
    assert (whole["message"]["content"], whole["finish_reason"]) == ("Well.", "length")
    assert "tool_calls" not in whole["message"]
    pieces = deltas(choice(tokenizer, has_tools=True), chunks)
    assert [piece["delta"] for piece in pieces] == [{"content": "Well."}, {}]
    assert pieces[-1]["finish_reason"] == "length"


def test_call_without_text_has_no_content(tokenizer: Tokenizer) -> None:
    assert choice(tokenizer, has_tools=True).whole(chunks_of([CALL]))["message"]["content"] is None


def test_tokens_without_text_are_told_when_asked(tokenizer: Tokenizer) -> None:
    wants = TokenDetails(logprobs=False, sources=True, token_ids=True)
    pieces = deltas(choice(tokenizer, wants), chunks_of(["", "é"]))
    assert pieces[0]["sources"] == [{"text": "", "source": "backbone", "depth": 0}]
    assert [piece.get("token_ids") for piece in pieces] == [[0], [1], None]


def test_logprobs_carry_text_and_bytes(tokenizer: Tokenizer) -> None:
    (token_id,) = tokenizer.encode("he", add_special=False)
    entry = TokenLogprob(token_id, -0.5, (TopLogprob(token_id, -0.5),))
    end = TokenLogprob(next(iter(tokenizer.eos_ids)), -0.1, ())
    wants = TokenDetails(logprobs=True, sources=False, token_ids=False)
    chunks = [*chunks_of(["he"], logprob=entry), *chunks_of([""], logprob=end)]
    logprobs = choice(tokenizer, wants).whole(chunks)["logprobs"]
    top = {"token": "he", "logprob": -0.5, "bytes": [104, 101]}
    assert logprobs == {"content": [{**top, "top_logprobs": [top]}]}, "the end is no text"
