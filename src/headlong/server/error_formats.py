"""Error responses in the format of each protocol.

In:  error responses in OpenAI's format. Out: the same in Anthropic's or Ollama's format, by the
     request's path. This is the outermost middleware, so it also covers errors about keys and
     limits.
"""

import json
from collections.abc import Mapping
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from headlong.server.answer_format import to_json
from headlong.server.http_middleware import HttpMiddleware, route_path
from headlong.server.refusal import ErrorDetails, Refusal

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def format_error(path: str, refusal: Refusal) -> Mapping[str, Any]:
    """Return the body of an error response in the format of a path's protocol."""
    if path.startswith("/v1/messages"):
        default = "api_error" if refusal.status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(refusal.status, default)
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}
    if path.startswith("/api/"):
        return {"error": refusal.message}
    return refusal.body


def failure_event(path: str, refusal: Refusal) -> bytes:
    """Return the last event of a stream that failed."""
    body = to_json(format_error(path, refusal))
    if path.startswith("/v1/messages"):
        return b"event: error\ndata: " + body + b"\n\n"
    if path.startswith("/api/"):
        return body + b"\n"
    if path.startswith("/v1/responses"):
        event: dict[str, Any] = {"type": "error", "code": refusal.code, "message": refusal.message}
        event |= {"param": refusal.param, "sequence_number": 0}
        return b"event: error\ndata: " + to_json(event) + b"\n\n"
    return b"data: " + body + b"\n\n"


async def end_stream(send: Send, path: str, refusal: Refusal) -> None:
    """End a stream that has begun with an error event."""
    event = failure_event(path, refusal)
    await send({"type": "http.response.body", "body": event, "more_body": False})


class ErrorFormatMiddleware(HttpMiddleware):
    """Rewrites error responses; the writers of streams end failed streams themselves."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if not path.startswith(("/v1/messages", "/api/")):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def rewrite(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
            elif start is None:
                await send(message)
            else:
                body = _rewritten(path, start["status"], message["body"])
                headers = [h for h in start["headers"] if h[0].lower() != b"content-length"]
                length = (b"content-length", str(len(body)).encode())
                await send({**start, "headers": [*headers, length]})
                await send({**message, "body": body})

        await self._app(scope, receive, rewrite)


def _rewritten(path: str, status: int, body: bytes) -> bytes:
    error = json.loads(body)["error"]
    refusal = Refusal(status, **{name: error[name] for name in ErrorDetails.model_fields})
    return to_json(format_error(path, refusal))
