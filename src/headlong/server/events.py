"""Server-sent events: a streamed answer as bytes, one write for all that a round brought.

In:  choices as dictionaries. Out: `data: {…}` lines. What all chunks of an answer share is written
once; only the choices go through the JSON encoder again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: object) -> bytes:
    """Return JSON as bytes; what UTF-8 cannot write becomes a question mark."""
    return _encode(value).encode("utf-8", "replace")


class EventWriter:
    """Writes the chunks of one answer."""

    def __init__(self, head: Mapping[str, Any], *, wants_usage: bool) -> None:
        """Begin an answer; `head` is what all its chunks share."""
        self._head = "data: " + _encode(head).removesuffix("}") + ',"choices":'
        # OpenAI's clients expect the field in every chunk once they have asked for it.
        self._tail = ',"usage":null}\n\n' if wants_usage else "}\n\n"

    def chunks(self, choices: Sequence[Mapping[str, Any]]) -> bytes:
        """Return one chunk per choice."""
        events = [f"{self._head}[{_encode(choice)}]{self._tail}" for choice in choices]
        return "".join(events).encode("utf-8", "replace")

    def last(self, choices: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> bytes:
        """Return one chunk with fields of its own."""
        body = f"{self._head}{_encode(choices)},{_encode(more).removeprefix('{')}"
        return f"{body}\n\n".encode("utf-8", "replace")
