"""What choices of both kinds of answer carry besides their text: logprobs, sources, token ids.

In:  chunks. Out: plain dictionaries for JSON, in OpenAI's names where OpenAI has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headlong.decode.sampling import TokenLogprob
from headlong.generation import Chunk
from headlong.server.protocol import GenerateBody
from headlong.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Wants:
    """What a request wants to know of its tokens."""

    logprobs: bool
    sources: bool
    token_ids: bool

    @classmethod
    def of(cls, body: GenerateBody, *, logprobs: bool) -> "Wants":
        """Read them from a body."""
        return cls(logprobs, bool(body.return_sources), bool(body.return_token_ids))

    @property
    def is_every_token(self) -> bool:
        """Whether a token without text of its own has something to tell."""
        return self.logprobs or self.sources or self.token_ids


class ChoiceWriter(Protocol):
    """Writes one choice of an answer: as it comes, or whole."""

    finish_reason: str | None
    """Why it ended, as clients are told; None before."""

    def opening(self) -> dict[str, Any] | None:
        """Return what a stream sends before the first chunk, if anything."""

    def pieces(self, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        """Return what these chunks add to a stream, the end last and by itself; maybe nothing."""

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the whole choice of an answer that was not streamed."""


def extras(chunks: Sequence[Chunk], wants: Wants) -> dict[str, Any]:
    """Return the fields of a choice that are ours."""
    more: dict[str, Any] = {}
    if wants.sources:
        more["sources"] = [
            {"text": chunk.text, "source": chunk.source, "depth": chunk.depth} for chunk in chunks
        ]
    if wants.token_ids:
        more["token_ids"] = [token_id for chunk in chunks for token_id in chunk.token_ids]
    return more


def text_logprobs(chunks: Sequence[Chunk], tokenizer: Tokenizer) -> list[TokenLogprob]:
    """Return the log-probabilities of tokens that are text: the one that ends a turn is none."""
    return [
        chunk.logprob
        for chunk in chunks
        if chunk.logprob is not None and not tokenizer.is_special(chunk.logprob.token_id)
    ]
