"""How one protocol writes one answer: what every protocol has to say, and JSON.

In:  choices as OpenAI's chat or completions API has them, whole or in pieces; the end of an answer.
Out: the body or the events of another protocol. `answering.py` runs the answer and knows no
     protocol; a protocol knows no engine.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headlong.server.telemetry import Usage

encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: object) -> bytes:
    """Return JSON as bytes; what UTF-8 cannot write becomes a question mark."""
    return encode_json(value).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Ending:
    """What there is to say of an answer that has ended."""

    usage: Usage
    telemetry: Mapping[str, Any]
    """`mtp`, `metrics`, `timings`, and `warnings` where there are any."""


class AnswerFormat(ABC):
    """Writes one answer."""

    media_type = "text/event-stream; charset=utf-8"
    """Of a stream; a whole answer is JSON."""

    @abstractmethod
    def whole(self, choices: Sequence[Mapping[str, Any]], ending: Ending) -> Mapping[str, Any]:
        """Return the body of an answer that was not streamed."""

    def opening(self, choices: Sequence[Mapping[str, Any]]) -> bytes:
        """Return what a stream begins with; `choices` are those that have something to say."""
        return b""

    def pieces(self, pieces: Sequence[Mapping[str, Any]]) -> bytes:
        """Return what has come; nothing where answers are never streamed."""
        return b""

    def last(self, pieces: Sequence[Mapping[str, Any]], ending: Ending) -> bytes:
        """Return the last that has come, and the end of the stream."""
        return b""
