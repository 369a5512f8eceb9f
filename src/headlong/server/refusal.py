"""Refusals: error responses in OpenAI's form, at any point of an answer.

In:  one of our errors, or a status with a message, OpenAI's type and code.
Out: a `Refusal`: a body for JSON, or a whole answer over ASGI. Statuses:
     400 change the request, 404 not found, 429 and 503 retry later, 500 internal error.
Clients read `error.message`, `error.type`, `error.param` and `error.code`.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Send

from headlong import errors


class ErrorDetails(BaseModel):
    """What was wrong, and what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """An error in OpenAI's form."""

    error: ErrorDetails


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    """When it may go better; rounded up to whole seconds in the header."""

    @property
    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        return {"error": {name: getattr(self, name) for name in ErrorDetails.model_fields}}

    @property
    def response(self) -> Response:
        """The whole answer."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (408, 413) or self.code == "ambiguous_length":
            headers["connection"] = "close"  # the rest of the body is not wanted
        # Escapes everything beyond ASCII: what a client sent may not be writable as UTF-8.
        return Response(json.dumps(self.body), self.status, headers, "application/json")


class ApiError(Exception):
    """A refusal that a route raises."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of a request that must be changed."""
    return ApiError(Refusal(400, message, code=code, param=param))


def refusal_for(error: errors.HeadlongError) -> Refusal:
    """Return the refusal for one of our own errors."""
    message = str(error)
    if isinstance(error, errors.BusyError):
        busy = ("rate_limit_error", "too_many_requests")
        return Refusal(429, message, *busy, retry_after_s=error.retry_after_s)
    if isinstance(error, errors.StoppingError):
        return Refusal(503, message, "server_error", "draining", retry_after_s=5)
    if isinstance(error, errors.EngineDownError):
        return Refusal(503, message, "server_error", "engine_down")
    if isinstance(error, errors.RequestError):
        code = None if error.param is None else "invalid_value"
        return Refusal(400, message, code=code, param=error.param)
    if isinstance(error, errors.TextError):
        return Refusal(400, message)
    if error.__cause__ is not None:  # unforeseen: what it says of our insides is for the log
        message = (
            f"The engine failed on this request with {type(error.__cause__).__name__}. Others go"
            " on; the server's log says more under the request id."
        )
    return Refusal(500, message, "server_error", "engine_error")


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """Answer with a refusal; nothing must have been sent before."""
    await send_response(send, refusal.response)


async def send_response(send: Send, response: Response) -> None:
    """Send a whole answer."""
    start = {"status": response.status_code, "headers": response.raw_headers}
    await send({"type": "http.response.start", **start})
    await send({"type": "http.response.body", "body": response.body})
