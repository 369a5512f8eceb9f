"""One choice of `/v1/completions`: text, and log-probabilities in the four lists of old.

In:  chunks. Out: OpenAI's `text_completion` choices, streamed or whole.
"""

from collections.abc import Sequence
from typing import Any

from headlong.decode.sampling import TokenLogprob
from headlong.generation import Chunk
from headlong.server.choices import Wants, extras, text_logprobs
from headlong.text.detokenizer import Detokenizer
from headlong.text.tokenizer import Tokenizer


class CompletionChoice:
    """Writes one choice."""

    def __init__(self, index: int, wants: Wants, tokenizer: Tokenizer, echo: str = "") -> None:
        """Begin a choice; `echo` is text to put before it."""
        self.finish_reason: str | None = None
        self._index = index
        self._wants = wants
        self._tokenizer = tokenizer
        self._echo = echo
        self._spelled = Detokenizer(tokenizer, is_continuation=True)
        self._num_chars = 0

    def opening(self) -> dict[str, Any] | None:
        """Return the echo, if one was asked for."""
        return self._choice(self._echo) if self._echo else None

    def pieces(self, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        """Return what these chunks add to a stream, the end last and by itself; maybe nothing."""
        text = "".join(chunk.text for chunk in chunks)
        pieces: list[dict[str, Any]] = []
        if text or (chunks and self._wants.is_every_token):
            pieces.append(self._choice(text) | self._details(chunks))
        if chunks and chunks[-1].finish_reason is not None:
            self.finish_reason = str(chunks[-1].finish_reason)
            pieces.append(self._choice(""))
        return pieces

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the whole choice."""
        self.finish_reason = str(chunks[-1].finish_reason)
        text = self._echo + "".join(chunk.text for chunk in chunks)
        return self._choice(text) | self._details(chunks)

    def _choice(self, text: str) -> dict[str, Any]:
        end = self.finish_reason
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": end}

    def _details(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        logprobs = {"logprobs": self._logprobs(chunks)} if self._wants.logprobs else {}
        return {**logprobs, **extras(chunks, self._wants)}

    def _logprobs(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        entries = text_logprobs(chunks, self._tokenizer)
        offsets = []
        for one in entries:
            offsets.append(self._num_chars)
            self._num_chars += len(self._spelled.push(one.token_id))
        return {
            "tokens": [self._tokenizer.token_text(one.token_id) for one in entries],
            "token_logprobs": [one.logprob for one in entries],
            "top_logprobs": [self._top(one) for one in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """Return alternatives by text, the chosen token among them; of equal texts the likelier."""
        top = {self._tokenizer.token_text(entry.token_id): entry.logprob}
        for other in entry.top:
            text = self._tokenizer.token_text(other.token_id)
            top[text] = max(other.logprob, top.get(text, other.logprob))
        return top
