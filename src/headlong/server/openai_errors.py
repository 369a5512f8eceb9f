"""Errors of the routes in OpenAI's form: ours and FastAPI's.

In:  an exception on its way out of a route.
Out: a `Refusal` with the status clients act on: 400 change the request, 404 no such thing, 429 and
     503 come back later, 500 our fault. What nobody foresaw is answered by `door.py`.
"""

import json

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headlong.errors import (
    BusyError,
    EngineDownError,
    HeadlongError,
    RequestError,
    StoppingError,
    TextError,
)
from headlong.server.refusal import Refusal
from headlong.server.validation import refuse_body


class ApiError(Exception):
    """A refusal that a route raises."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error of a request that must be changed."""
    return ApiError(Refusal(400, message, code=code, param=param))


def refusal_for(error: HeadlongError) -> Refusal:
    """Return how one of our own errors is told to a client."""
    message = str(error)
    if isinstance(error, BusyError):
        return Refusal(
            429,
            message,
            "rate_limit_error",
            "too_many_requests",
            retry_after_s=error.retry_after_s,
        )
    if isinstance(error, StoppingError):
        return Refusal(503, message, "server_error", "draining", retry_after_s=5)
    if isinstance(error, EngineDownError):
        return Refusal(503, message, "server_error", "engine_down")
    if isinstance(error, RequestError):
        code = None if error.param is None else "invalid_value"
        return Refusal(400, message, code=code, param=error.param)
    if isinstance(error, TextError):
        return Refusal(400, message)
    if error.__cause__ is not None:  # nobody foresaw it: what it says of our insides is for the log
        message = (
            f"The engine failed on this request with {type(error.__cause__).__name__}. Others go"
            " on; the server's log says more under the request id."
        )
    return Refusal(500, message, "server_error", "engine_error")


def answer_refusal(refusal: Refusal) -> Response:
    """Return a refusal as an HTTP answer."""
    # Escapes everything beyond ASCII: what a client sent may not be writable as UTF-8.
    body = json.dumps(refusal.body).encode()
    return Response(body, refusal.status, refusal.headers, "application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Make `app` answer every error in OpenAI's form."""

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        return answer_refusal(error.refusal)

    @app.exception_handler(HeadlongError)
    async def on_headlong_error(request: Request, error: HeadlongError) -> Response:
        return answer_refusal(refusal_for(error))

    @app.exception_handler(RequestValidationError)
    async def on_bad_body(request: Request, error: RequestValidationError) -> Response:
        return answer_refusal(refuse_body(request, error))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        answer = answer_refusal(_refuse_http(request, error))
        answer.headers.update(error.headers or {})  # Allow, of 405
        return answer


def _refuse_http(request: Request, error: HTTPException) -> Refusal:
    asked = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return Refusal(
            404, f"There is no {asked}. See /openapi.json for what there is.", code="not_found"
        )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Refusal(405, f"There is no {asked}. Use {allowed}.", code="method_not_allowed")
    if error.status_code == 400:  # FastAPI's word for JSON that broke its parser
        return Refusal(400, "The body could not be read as JSON.", code="invalid_json")
    return Refusal(error.status_code, str(error.detail))
