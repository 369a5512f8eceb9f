"""The stream of an OpenAI-compatible server, line by line.

In:  lines of a streamed answer. Out: its events as dictionaries; anything that is no such stream is
refused with what came instead. Knows nothing of connections or clocks.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from headlong.errors import RequestError

DONE = "[DONE]"
_SHOWN = 120


def read_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an event stream until it says that it is done."""
    for line in lines:
        if is_done(line):
            return
        event = read_event(line)
        if event is not None:
            yield event


def is_done(line: str) -> bool:
    """Tell whether a line says that the stream is over."""
    return line.startswith("data:") and line.removeprefix("data:").strip() == DONE


def read_event(line: str) -> dict[str, Any] | None:
    """Return the JSON object of one line; None when the line only keeps the stream open."""
    if not line or line.startswith((":", "event:", "id:", "retry:")):
        return None
    if not line.startswith("data:"):
        raise _garbage(line)
    data = line.removeprefix("data:").strip()
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
