"""One choice of `/v1/chat/completions`: a message of text and tool calls.

In:  chunks. Out: OpenAI's deltas or its whole message. Where tools may be called, the text goes
through a `ToolCallReader` first; its calls are streamed as they are written.
"""

from collections.abc import Sequence
from typing import Any

from headlong.decode.sampling import TokenLogprob
from headlong.engine.request import FinishReason
from headlong.generation import Chunk
from headlong.server.choices import Wants, extras, text_logprobs
from headlong.text.tokenizer import Tokenizer
from headlong.text.tool_calls import TextDelta, ToolCallReader, ToolCallStart, ToolEvent


class ChatChoice:
    """Writes one choice."""

    def __init__(
        self, index: int, wants: Wants, tokenizer: Tokenizer, calls: ToolCallReader | None = None
    ) -> None:
        """Begin a choice; `calls` finds tool calls in its text."""
        self.finish_reason: str | None = None
        self._index = index
        self._wants = wants
        self._tokenizer = tokenizer
        self._calls = calls
        self._has_calls = False

    def opening(self) -> dict[str, Any]:
        """Return the chunk that says who speaks."""
        return self._streamed({"role": "assistant", "content": ""})

    def pieces(self, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        """Return what these chunks add to a stream, the end last and by itself; maybe nothing."""
        delta = self._read(chunks)
        pieces: list[dict[str, Any]] = []
        if delta or (chunks and self._wants.is_every_token):
            pieces.append(self._streamed(delta) | self._details(chunks))
        if chunks and chunks[-1].finish_reason is not None:
            self._end(chunks[-1].finish_reason)
            pieces.append(self._streamed({}))
        return pieces

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return the whole choice."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        message |= self._read(chunks)
        for call in message.get("tool_calls", ()):
            del call["index"]
        if not self._has_calls:
            message["content"] = message["content"] or ""
        end = chunks[-1].finish_reason
        assert end is not None, "a whole choice has ended"
        self._end(end)
        return {
            "index": self._index,
            "message": message,
            "logprobs": None,
            "finish_reason": self.finish_reason,
            **self._details(chunks),
        }

    def _streamed(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }

    def _end(self, reason: FinishReason) -> None:
        is_call = self._has_calls and reason is FinishReason.STOP
        self.finish_reason = "tool_calls" if is_call else str(reason)

    def _read(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """Return what chunks add to the message: content, calls, both or nothing."""
        text = "".join(chunk.text for chunk in chunks)
        if self._calls is None:
            return {"content": text} if text else {}
        events = self._calls.push(text)
        if chunks and chunks[-1].finish_reason is not None:
            is_cut = chunks[-1].finish_reason is FinishReason.LENGTH
            events += self._calls.flush(is_cut=is_cut)
        return self._join(events)

    def _join(self, events: Sequence[ToolEvent]) -> dict[str, Any]:
        """Join events into one delta; each call appears in it once."""
        content, calls = "", dict[int, dict[str, Any]]()
        for event in events:
            if isinstance(event, TextDelta):
                content += event.text
            elif isinstance(event, ToolCallStart):
                function = {"name": event.name, "arguments": ""}
                head = {"index": event.index, "id": event.id, "type": "function"}
                calls[event.index] = {**head, "function": function}
            else:
                empty = {"index": event.index, "function": {"arguments": ""}}
                call = calls.setdefault(event.index, empty)
                call["function"]["arguments"] += event.text
        self._has_calls = self._has_calls or bool(calls)
        delta: dict[str, Any] = {"content": content} if content else {}
        return {**delta, "tool_calls": list(calls.values())} if calls else delta

    def _details(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        if not self._wants.is_every_token:
            return {}
        details = extras(chunks, self._wants)
        if self._wants.logprobs:
            entries = text_logprobs(chunks, self._tokenizer)
            details["logprobs"] = {"content": [self._logprob(one) for one in entries]}
        return details

    def _logprob(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._token(other.token_id, other.logprob) for other in entry.top]
        return {**self._token(entry.token_id, entry.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self._tokenizer.token_bytes(token_id)
        text = spelled.decode("utf-8", errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelled)}
