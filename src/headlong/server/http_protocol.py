"""HTTP on one connection: uvicorn's, with a time limit for the headers of a request.

In:  the bytes of a client.
Out: the requests in them; a closed connection where headers do not come in time. Uvicorn alone
     waits for ever, so that clients who send a byte now and then could hold all connections.
It is always h11: which requests are taken must not depend on what else is installed.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedHttpProtocol(H11Protocol):
    """Closes a connection whose next request has no end of headers after `timeout_s`."""

    def __init__(self, timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._timeout_s = timeout_s
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the first of a request's headers start the clock, the last stop it."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._deadline is None:
            handler = self.timeout_keep_alive_handler
            self._deadline = self.loop.call_later(self._timeout_s, handler)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
