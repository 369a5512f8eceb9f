"""Limits: size of bodies, requests at one time, duration; and draining.

In:  HTTP requests on their way to the app. Out: the same, or 413, 408, 429, 503, 504 in OpenAI's
     error form, the moment a limit is passed.
`InFlight` is shared with the drain of the server.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headlong.errors import BusyError, StoppingError
from headlong.server.error_formats import end_stream
from headlong.server.http_middleware import HttpMiddleware, route_path
from headlong.server.metrics import Metrics
from headlong.server.refusal import Refusal, refusal_for, send_refusal
from headlong.server.settings import ApiKey, ServerSettings

RETRY_AFTER_S = 1.0
"""When a client that was turned away for load should come back."""

LAST_WORDS_S = 1.0
"""How long a client may take to hear that its time is over."""

_DISCARD_S = 2.0
_DISCARD_BYTES = 64 * 2**20
"""How long, and how much of, a body that is too large is read on and thrown away: a client that
still sends when the connection closes loses the answer that says why."""


class InFlight:
    """Requests that are being answered now, in all and per API key; asyncio side only."""

    def __init__(self) -> None:
        self.is_draining = False
        self._by_client: Counter[str | None] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num(self) -> int:
        """How many there are."""
        return self._by_client.total()

    def num_of(self, client: ApiKey | None) -> int:
        """How many there are of one client."""
        return self._by_client[_name(client)]

    @contextmanager
    def count(self, client: ApiKey | None) -> Iterator[None]:
        """Count one request while it is answered."""
        name = _name(client)
        self._by_client[name] += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._by_client[name] -= 1
            if not self.num:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; return whether that happened in time."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


def _name(client: ApiKey | None) -> str | None:
    return None if client is None else client.name


class ConcurrencyMiddleware(HttpMiddleware):
    """Counts requests that compute, and turns away those above a limit or while draining."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, in_flight: InFlight
    ) -> None:
        super().__init__(app, settings, metrics)
        self._in_flight = in_flight

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Status requests are always allowed; while draining, /health says so.
        is_health = self._in_flight.is_draining and route_path(scope) == "/health"
        if scope["method"] != "POST" and not is_health:
            await self._app(scope, receive, send)
            return
        client: ApiKey | None = scope.get("state", {}).get("client")
        refusal = self._refusal(client)
        if refusal is not None:
            await self._refuse(send, refusal, refusal.code or "limit")
            return
        with self._in_flight.count(client):
            await self._app(scope, receive, send)

    def _refusal(self, client: ApiKey | None) -> Refusal | None:
        if self._in_flight.is_draining:
            remedy = "Ask again in a moment, or ask another one."
            return refusal_for(StoppingError("The server is shutting down.", remedy))
        most, own = self._settings.max_concurrent, self._settings.max_concurrent_per_key
        if client is not None and client.max_concurrent is not None:
            own = client.max_concurrent
        if own is not None and client is not None and self._in_flight.num_of(client) >= own:
            return _too_many(f"This API key may have {own} requests at one time, and has them.")
        if most is not None and self._in_flight.num >= most:
            return _too_many(f"The server takes {most} requests at one time, and has them.")
        return None


class BodyLimitMiddleware(HttpMiddleware):
    """Cuts bodies that are too large or too slow, while they are being read."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        most, headers = self._settings.max_body_bytes, Headers(scope=scope)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            if headers.get("expect", "").lower() != "100-continue":  # else it waits to be asked
                await _discard(receive)
            await self._refuse_large(send, f"{int(declared):,} bytes")
            return
        body = _LimitedBody(receive, most, self._settings.body_timeout_s)
        has_started = False

        async def send_unless_failed(message: Message) -> None:
            nonlocal has_started
            if body.failure is None or has_started:  # else the refusal comes instead
                has_started = True
                await send(message)

        try:
            await self._app(scope, body.receive, send_unless_failed)
        except Exception:
            if body.failure is None:
                raise
        if body.failure is None or has_started:
            return
        if body.failure == "slow":
            seconds = self._settings.body_timeout_s
            message = f"The request's body did not arrive within {seconds:g} s."
            refusal = Refusal(408, message, "timeout_error", "body_too_slow")
            await self._refuse(send, refusal, "body_too_slow")
        else:
            await _discard(receive)
            await self._refuse_large(send, f"more than {most:,} bytes")

    async def _refuse_large(self, send: Send, given: str) -> None:
        most = self._settings.max_body_bytes
        message = f"The request's body has {given}; this server takes {most:,} at most."
        await self._refuse(send, Refusal(413, message, code="body_too_large"), "body_too_large")


class _LimitedBody:
    """Reads a body on behalf of the app, and stops where it passes a limit."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._left = max_bytes
        self._deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._is_complete = False
        self.failure: str | None = None

    async def receive(self) -> Message:
        """Return the next message; end the request where a limit is passed."""
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline_s):
                message = await self._receive()
        except TimeoutError:
            raise self._fail(408, "slow") from None
        if message["type"] != "http.request":
            return message
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise self._fail(413, "large")
        self._is_complete = not message.get("more_body", False)
        return message

    def _fail(self, status: int, failure: str) -> HTTPException:
        self.failure = failure
        return HTTPException(status)  # the one exception that frameworks pass on as it is


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, within reason."""
    num_left, has_more = _DISCARD_BYTES, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while num_left > 0 and has_more:
                message = await receive()
                num_left -= len(message.get("body", b""))
                has_more = message.get("more_body", False)


class TimeoutMiddleware(HttpMiddleware):
    """Ends requests that take too long, with an answer: 504, or a last event in the stream."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        has_started, has_ended = False, False

        async def watch(message: Message) -> None:
            nonlocal has_started, has_ended
            has_started = True
            await send(message)
            is_body = message["type"] == "http.response.body"
            has_ended = is_body and not message.get("more_body", False)

        try:
            async with asyncio.timeout(self._settings.request_timeout_s) as timer:
                await self._app(scope, receive, watch)
        except TimeoutError:
            if not timer.expired():
                raise
        if timer.expired() and not has_ended:
            scope.setdefault("state", {})["timed_out"] = True
            self._metrics.refused("timeout")
            # A client that has stopped reading hears nothing; its connection is then closed.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._say(scope, send, is_stream=has_started)

    async def _say(self, scope: Scope, send: Send, *, is_stream: bool) -> None:
        """Tell the client, at the end of what it has got so far."""
        if is_stream:
            await end_stream(send, route_path(scope), self._refusal())
        else:
            await send_refusal(send, self._refusal())

    def _refusal(self) -> Refusal:
        message = (
            f"The request took longer than the {self._settings.request_timeout_s:g} s this server "
            "allows. Ask for fewer tokens, or raise request_timeout_s."
        )
        return Refusal(504, message, "timeout_error", "timeout")


def _too_many(problem: str) -> Refusal:
    return refusal_for(BusyError(problem, "Ask again in a moment.", RETRY_AFTER_S))
