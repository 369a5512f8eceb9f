"""The stream of an OpenAI-compatible server, piece by piece as it comes.

In:  bytes of a streamed answer. Out: its events as dictionaries; anything that is no such stream is
refused with what came instead. Knows nothing of connections or clocks.
"""

import json
from collections.abc import Iterator
from typing import Any

from headlong.errors import RequestError

DONE = "[DONE]"
_SHOWN = 120


class EventReader:
    """Makes events of bytes, however those are cut.

    Lines end with a line feed and nothing else: text may hold the other characters that Python, and
    so httpx, takes for ends of lines. What follows the end of the stream is read and left alone, so
    that a connection can be used again.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.is_done = False
        """Whether the stream has said that it is over."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that are whole now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._read_line(line)

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield what a last line without an end holds."""
        yield from self.feed(b"\n")

    def _read_line(self, line: bytes) -> Iterator[dict[str, Any]]:
        if self.is_done:
            return
        event = _read_event(line.decode("utf-8", "replace").rstrip("\r"))
        self.is_done = event == DONE
        if isinstance(event, dict):
            yield event


def _read_event(line: str) -> dict[str, Any] | str | None:
    """Return a line's event, or the word that ends the stream; None where it only keeps it open."""
    if not line or line.startswith((":", "event:", "id:", "retry:")):
        return None
    if not line.startswith("data:"):
        raise _garbage(line)
    data = line.removeprefix("data:").strip()
    if data == DONE:
        return DONE
    try:
        event = json.loads(data)
    except ValueError as error:
        raise _garbage(data) from error
    if not isinstance(event, dict):
        raise _garbage(data)
    if "error" in event:
        raise RequestError(f"The server broke off: {read_error(event)}", "See its log.")
    return event


def read_error(body: Any) -> str:
    """Return what an error body of any of the usual forms says."""
    if not isinstance(body, dict):
        return str(body)[:_SHOWN]
    error = body.get("error", body.get("detail", body.get("message", body)))
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)


def read_piece(event: dict[str, Any]) -> str:
    """Return the text that an event adds: an answer's, its reasoning's or its tool calls'."""
    pieces = []
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        for text in (choice.get("text"), delta.get("reasoning_content"), delta.get("content")):
            pieces.append(text or "")
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            pieces.append((function.get("name") or "") + (function.get("arguments") or ""))
    return "".join(pieces)


def read_finish_reason(event: dict[str, Any]) -> str | None:
    """Return why the answer ended, where the event says so."""
    reasons = [choice.get("finish_reason") for choice in event.get("choices") or ()]
    return next((str(reason) for reason in reasons if reason), None)


def _garbage(text: str) -> RequestError:
    return RequestError(
        f"The server did not send an event stream but {text[:_SHOWN]!r}.",
        "Give the address of an OpenAI-compatible server, usually ending in /v1.",
    )
