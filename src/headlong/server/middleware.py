"""Middleware: everything a request passes before a route, and an answer after it.

In:  an app with routes. Out: the same, observed, guarded and limited.
From the outside in: the shape of errors, observe (request id, log line, metrics, 500 for unforeseen
faults), security headers, origins, keys, concurrency and drain, time, body, HEAD.
"""

import logging
import re
import secrets
import time
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Message, Receive, Scope, Send

from headlong.server import rate_limits
from headlong.server.auth import AuthMiddleware, OriginMiddleware, is_page
from headlong.server.error_formats import ErrorFormatMiddleware
from headlong.server.http_middleware import HttpMiddleware, route_path
from headlong.server.live import FinishedRequest
from headlong.server.logs import log_request, record_facts
from headlong.server.metrics import Metrics
from headlong.server.refusal import Refusal, send_refusal
from headlong.server.settings import ServerSettings

REQUEST_ID_HEADER = "X-Request-Id"

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_LOGGED_BYTES = 100_000

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_FAULT = Refusal(
    500,
    "The server failed on this request. It goes on; the log has the reason under the request id.",
    "server_error",
    "internal_error",
)
_log = logging.getLogger("headlong.middleware")


def add_middleware(
    app: FastAPI, settings: ServerSettings, metrics: Metrics
) -> rate_limits.InFlight:
    """Put all middleware around an app; `app.state.in_flight` counts the requests inside."""
    app.state.in_flight = in_flight = rate_limits.InFlight()
    # Each one goes around those before it, so the innermost comes first.
    app.add_middleware(HeadMiddleware, settings, metrics)
    app.add_middleware(rate_limits.BodyLimitMiddleware, settings, metrics)
    app.add_middleware(rate_limits.TimeoutMiddleware, settings, metrics)
    app.add_middleware(rate_limits.ConcurrencyMiddleware, settings, metrics, in_flight)
    app.add_middleware(AuthMiddleware, settings, metrics)
    app.add_middleware(OriginMiddleware, settings, metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER, "Retry-After"],
        )
    app.add_middleware(SecurityHeadersMiddleware, settings, metrics)
    app.add_middleware(ObserveMiddleware, settings, metrics)
    app.add_middleware(ErrorFormatMiddleware, settings, metrics)
    return in_flight


class HeadMiddleware(HttpMiddleware):
    """Answers HEAD wherever GET is answered, without the body: load balancers ask that way."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def drop_body(message: Message) -> None:
            is_body = message["type"] == "http.response.body"
            await send({**message, "body": b""} if is_body else message)

        asked = {**scope, "method": "GET"}
        await self._app(asked, receive, drop_body)
        scope["route"] = asked.get("route")  # what the metrics call it


class SecurityHeadersMiddleware(HttpMiddleware):
    """Tells browsers what an answer is not: a frame, a guess, a place for foreign scripts."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                if headers.get("content-type", "").startswith("text/html"):
                    headers["Content-Security-Policy"] = _PAGE_POLICY
                    headers["X-Frame-Options"] = "DENY"
            await send(message)

        await self._app(scope, receive, add)


class ObserveMiddleware(HttpMiddleware):
    """Names a request, counts it, logs it, and answers for unforeseen faults."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = _Exchange(scope, receive, send, keeps_text=self._settings.log_prompts)
        try:
            await self._app(scope, seen.receive, seen.send)
        except Exception:
            _log.exception("Request %s failed.", seen.request_id)
            if not seen.status:
                await send_refusal(seen.send, _FAULT)
        finally:
            self._metrics.answered(_route_label(scope), seen.status or 499)
            path = route_path(scope)
            is_status = path in ("/health", "/metrics") or path.startswith("/headlong/")
            log_request(seen.facts(), is_routine=is_status or is_page(path))


class _Exchange:
    """One request and its answer, watched."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, keeps_text: bool) -> None:
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        is_sane = _SANE_ID.fullmatch(given) is not None
        self.request_id = given if is_sane else f"req_{secrets.token_hex(12)}"
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._began_s = time.perf_counter()
        self._is_over = False
        self._is_disconnected = False
        self._texts = {"request_body": bytearray(), "response_body": bytearray()}
        self._keeps_text = keeps_text
        scope.setdefault("state", {})["request_id"] = self.request_id

    async def receive(self) -> Message:
        """Pass a message of the client on."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._is_disconnected = not self._is_over
        else:
            self._keep("request_body", message)
        return message

    async def send(self, message: Message) -> None:
        """Pass a message of the app on, with the request's id on it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self.request_id
        elif message["type"] == "http.response.body":
            self._keep("response_body", message)
            self._is_over = not message.get("more_body", False)
        await self._send(message)

    def facts(self) -> dict[str, Any]:
        """Return what the log says of it."""
        state = self._scope.get("state", {})
        client, address = state.get("client"), self._scope.get("client")
        raw_path: bytes = self._scope.get("raw_path") or self._scope["path"].encode()
        facts: dict[str, Any] = {
            "request_id": self.request_id,
            "method": self._scope["method"],
            "path": raw_path.decode("ascii", "backslashreplace")[:200],
            "status": self.status or 499,
            "duration_ms": round(1e3 * (time.perf_counter() - self._began_s), 1),
            "client": None if client is None else client.name,
            "address": None if address is None else address[0],
        }
        record = state.get("record")
        if isinstance(record, FinishedRequest):
            facts |= record_facts(record)
        if state.get("timed_out"):
            facts["finish_reason"] = "timeout"
        if self._is_disconnected:
            facts["is_disconnected"] = True
        if self._keeps_text:
            facts |= {name: text.decode("utf-8", "replace") for name, text in self._texts.items()}
        return facts

    def _keep(self, name: str, message: Message) -> None:
        """Keep text for the log if `log_prompts` is set."""
        if self._keeps_text and len(self._texts[name]) < _MAX_LOGGED_BYTES:
            self._texts[name] += message.get("body", b"")[:_MAX_LOGGED_BYTES]


def _route_label(scope: Scope) -> str:
    """Return the route that answered; unknown paths share a label, or they could flood us."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "page" if is_page(route_path(scope)) else "other"
