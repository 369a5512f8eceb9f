"""Refusals: what an engine says instead of an answer, as an error of ours.

In:  an HTTP status or an error inside a stream. Out: `RequestError` where the request itself is at
fault and no other replica would take it, `BusyError` where waiting helps, else `EngineError`.
"""

import json
from contextlib import suppress

from headlong.errors import BusyError, EngineError, HeadlongError, RequestError
from headlong.fleet.fields import Fields

_REQUEST_FAULTS = (400, 413, 422)
_BUSY = (429, 503)
_UNKNOWN = (404, 405)
_MAX_WORDS = 300
_MAX_WAIT_S = 60.0


def http_refusal(status: int, body: bytes, retry_after: str | None = None) -> HeadlongError:
    """Return an HTTP error; the others of 4xx are about keys, paths and models: the front's own."""
    words = body.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):
        words = _message(json.loads(words)) or words
    return refusal(status, words, retry_after)


def refusal(status: int, words: str, retry_after: str | None = None) -> HeadlongError:
    """Return what a status means, with the engine's own words."""
    words = " ".join(words.split()).rstrip(".")
    words = words if len(words) <= _MAX_WORDS else f"{words[:_MAX_WORDS]}…"
    said = f"{status}: {words}" if words else str(status)
    if status in _REQUEST_FAULTS:
        return RequestError(f"The engine refuses the request: {words or status}.")
    if status in _BUSY:
        return BusyError(f"The engine is busy ({said}).", "Try again.", _seconds(retry_after))
    if status in _UNKNOWN:
        problem = f"The engine does not know what it was asked for ({said})."
        return EngineError(problem, "Is it the kind of engine that --engine names?")
    return EngineError(f"The engine failed ({said}).", "See its log.")


def raise_failure(event: Fields) -> None:
    """Raise what an event reports instead of an answer, if it does."""
    told = event.own.get("error")
    if told:
        status = told.get("code") if isinstance(told, dict) else None
        raise refusal(status if isinstance(status, int) else 500, _message({"error": told}))


def _message(document: object) -> str:
    """Return the words of an error body: `error` with a message or as a text, or `detail`."""
    if not isinstance(document, dict):
        return ""
    error = document.get("error", document)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or ""
    return str(error)


def _seconds(retry_after: str | None) -> float:
    """Return what `Retry-After` asks for; a date counts like none."""
    asked = retry_after or ""
    return min(float(asked), _MAX_WAIT_S) if asked.isascii() and asked.isdigit() else 1.0
