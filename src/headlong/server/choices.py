"""Writing the choices of an answer: what chat and plain completions do alike.

In:  chunks. Out: plain dictionaries for JSON, in OpenAI's names where OpenAI has them; sources and
token ids are ours.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headlong.decode.sampling import TokenLogprob
from headlong.engine.request import FinishReason, RequestReport
from headlong.generation import Chunk
from headlong.server.protocol import GenerateBody
from headlong.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """The details of tokens that a request asked for."""

    logprobs: bool
    sources: bool
    token_ids: bool
    reasoning: bool = True
    """Whether it asked for the reasoning."""

    @classmethod
    def of(cls, body: GenerateBody, *, logprobs: bool, reasoning: bool = True) -> "TokenDetails":
        """Read them from a body."""
        return cls(logprobs, bool(body.return_sources), bool(body.return_token_ids), reasoning)

    @property
    def is_every_token(self) -> bool:
        """Whether a token without text of its own has something to tell."""
        return self.logprobs or self.sources or self.token_ids


class Writer(ABC):
    """Writes one choice of an answer."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        """Its finish reason; None before its end."""

    def opening(self) -> dict[str, Any] | None:
        """Return what a stream sends before the first chunk, if anything."""
        return None

    def pieces(self, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        """Return what these chunks add to a stream; maybe nothing."""
        return []

    @abstractmethod
    def whole(self, chunks: Sequence[Chunk], report: RequestReport | None = None) -> dict[str, Any]:
        """Return the whole choice of an answer that was not streamed; `report` is what it took."""


class ChoiceWriter(Writer):
    """Writes one choice of text: as it comes, or whole."""

    def __init__(self, index: int, wanted: TokenDetails, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._index = index
        self._wanted = wanted
        self._tokenizer = tokenizer

    def pieces(self, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        """Return what these chunks add to a stream, the end last and by itself; maybe nothing."""
        content, pieces = self._read(chunks), list[dict[str, Any]]()
        if content or (chunks and self._wanted.is_every_token):
            pieces.append(self._piece(content) | self._details(chunks))
        if chunks and chunks[-1].finish_reason is not None:
            self._end(chunks[-1].finish_reason)
            pieces.append(self._piece() | self._stopped(chunks))
        return pieces

    @abstractmethod
    def _read(self, chunks: Sequence[Chunk]) -> Any:
        """Return the content that chunks add; what is false adds nothing."""

    @abstractmethod
    def _piece(self, content: Any = None) -> dict[str, Any]:
        """Return a chunk of the stream."""

    @abstractmethod
    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return log-probabilities in OpenAI's form."""

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = str(reason)

    def _stopped(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the stop string that ended the answer, as vLLM does."""
        stop_string = chunks[-1].stop_string
        return {} if stop_string is None else {"stop_reason": stop_string}

    def _details(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the requested details of these tokens."""
        details: dict[str, Any] = {}
        if self._wanted.sources:
            details["sources"] = [self._source(chunk) for chunk in chunks]
        if self._wanted.token_ids:
            details["token_ids"] = [token_id for chunk in chunks for token_id in chunk.token_ids]
        if self._wanted.logprobs:
            found = [chunk.logprob for chunk in chunks if chunk.logprob is not None]
            # The token that ends a turn is no text.
            is_special = self._tokenizer.is_special
            details["logprobs"] = self._logprobs([e for e in found if not is_special(e.token_id)])
        return details

    def _source(self, chunk: Chunk) -> dict[str, Any]:
        source = {"text": chunk.text, "source": chunk.source, "depth": chunk.depth}
        if chunk.reasoning and self._wanted.reasoning:
            source["reasoning"] = chunk.reasoning
        return source
