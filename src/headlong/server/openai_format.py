"""OpenAI's chat and text completions: chunks of a stream, and the whole body.

In:  choices. Out: `data: {…}` events, all with the same head, and `data: [DONE]`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headlong.server.answer_format import AnswerFormat, Ending, encode_json
from headlong.server.call import Call

DONE = b"data: [DONE]\n\n"


class OpenAIFormat(AnswerFormat):
    """Writes one answer of chat or completions."""

    def __init__(self, call: Call, *, wants_usage: bool) -> None:
        """Begin an answer; `wants_usage` is about streams."""
        self._call = call
        self._wants_usage = wants_usage
        self._events = EventWriter(call.head(call.kind.chunk_object), wants_usage=wants_usage)

    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the whole body."""
        head = self._call.head(self._call.kind.whole_object)
        usage = ending.usage.model_dump()
        return {**head, "choices": choices, "usage": usage, **ending.telemetry}

    def opening(self, choices: Sequence[Mapping[str, Any]]) -> bytes:
        """Return who speaks."""
        return self._events.chunks(choices)

    def pieces(self, pieces: Sequence[Mapping[str, Any]]) -> bytes:
        """Return one chunk per piece."""
        return self._events.chunks(pieces)

    def last(self, pieces: Sequence[Mapping[str, Any]], ending: Ending) -> bytes:
        """Return the last chunks; telemetry goes with the usage, or with the last piece."""
        ends: Sequence[Mapping[str, Any]] = ()
        more = dict(ending.telemetry)
        if self._wants_usage:
            more = {"usage": ending.usage.model_dump(), **more}
        else:
            pieces, ends = pieces[:-1], pieces[-1:]
        return self._events.chunks(pieces) + self._events.last(ends, more) + DONE


class EventWriter:
    """Writes the chunks of one answer."""

    def __init__(self, head: Mapping[str, Any], *, wants_usage: bool) -> None:
        """Begin an answer; `head` is what all its chunks share."""
        self._head = "data: " + encode_json(head).removesuffix("}") + ',"choices":'
        # OpenAI's clients expect the field in every chunk once they have asked for it.
        self._tail = ',"usage":null}\n\n' if wants_usage else "}\n\n"

    def chunks(self, choices: Sequence[Mapping[str, Any]]) -> bytes:
        """Return one chunk per choice."""
        events = [f"{self._head}[{encode_json(choice)}]{self._tail}" for choice in choices]
        return "".join(events).encode("utf-8", "replace")

    def last(self, choices: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> bytes:
        """Return one chunk with fields of its own."""
        body = f"{self._head}{encode_json(choices)},{encode_json(more).removeprefix('{')}"
        return f"{body}\n\n".encode("utf-8", "replace")
