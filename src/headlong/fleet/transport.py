"""The transport: HTTP/1.1 to replicas, over connections that are kept.

In:  httpx's requests. Out: its responses, read as they come.
httpx's own pool looks through all its connections whenever a request begins or ends, which hundreds
of streams at once make the dearest part of the server; here idle ones lie in a list. A connection
that was kept may be closed by the other side at any moment: where it dies without a byte of an
answer, the request is sent again over a new one.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from functools import cached_property
from typing import TypeAlias

import httpx

MAX_IDLE = 256
"""Connections kept to one replica."""

_PIECE = 1 << 16
_NO_BODY = (204, 304)
_FAILURES = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)

Origin: TypeAlias = tuple[str, str, int]


class ReplicaTransport(httpx.AsyncBaseTransport):
    """Connections to any number of replicas; used in one event loop."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[Origin, list[_Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the head of its answer; the body comes as it is read."""
        url = request.url
        origin = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        data = _written(request, await request.aread())
        idle = self._idle.setdefault(origin, [])
        while True:
            kept = self._take(idle)
            connection = kept or await self._connect(origin)
            try:
                status, headers = await connection.exchange(data)
                break
            except BaseException as error:
                connection.close()
                if kept is not None and isinstance(error, _UnansweredError):
                    continue  # it had been closed already
                if isinstance(error, _FAILURES):
                    raise _read_error(error) from error
                raise
        body = _Body(connection, request.method, status, headers, idle)
        return httpx.Response(status, headers=headers, stream=body, request=request)

    async def aclose(self) -> None:
        """Close what is kept."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
        await asyncio.sleep(0)  # sockets close in the loop's next turn

    def _take(self, idle: "list[_Connection]") -> "_Connection | None":
        """Return the connection used last that can carry a request."""
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin) -> "_Connection":
        scheme, host, port = origin
        secured = self._ssl if scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                streams = await asyncio.open_connection(host, port, ssl=secured, limit=_PIECE)
        except TimeoutError:
            problem = f"no connection within {self._connect_timeout_s:g} s"
            raise httpx.ConnectTimeout(problem) from None
        except (OSError, UnicodeError) as error:  # the latter: hosts that no name server knows
            raise httpx.ConnectError(_words(error)) from error
        return _Connection(*streams)

    @cached_property
    def _ssl(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class _UnansweredError(ConnectionError):
    """The other side closed without a byte of an answer."""


class _Connection:
    """One connection, for one exchange after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @property
    def is_open(self) -> bool:
        """Whether it can carry a request: not closed, and nothing has come unasked.

        What an engine sends behind its answer would be read as the next one.
        """
        has_rest = bool(self.reader._buffer)  # type: ignore[attr-defined] # no other way to see it
        return not (has_rest or self.reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Close at once, whatever is under way."""
        self._writer.transport.abort()

    async def exchange(self, data: bytes) -> tuple[int, httpx.Headers]:
        """Send a request and return status and headers of the answer."""
        try:
            self._writer.write(data)
            await self._writer.drain()
            first = await self.reader.readexactly(1)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise _UnansweredError("the connection was closed without an answer") from None
        while True:
            head = first + await self.reader.readuntil(b"\r\n\r\n")
            lines = head[:-4].split(b"\r\n")
            protocol, _, said = lines[0].partition(b" ")
            if not protocol.startswith(b"HTTP/1."):
                raise ValueError(f"it begins with {protocol[:20]!r}")
            status = int(said[:3])
            if status >= 200:
                break
            first = b""  # what is merely a notice
        pairs = [line.partition(b":")[::2] for line in lines[1:]]
        return status, httpx.Headers([(name.strip(), value.strip()) for name, value in pairs])


class _Body(httpx.AsyncByteStream):
    """The body of an answer; its connection is kept where it was read to its end."""

    def __init__(
        self,
        connection: _Connection,
        method: str,
        status: int,
        headers: httpx.Headers,
        idle: list[_Connection],
    ) -> None:
        self._connection = connection
        self._headers = headers
        self._idle = idle
        self._is_read = method == "HEAD" or status in _NO_BODY
        self._is_kept = headers.get("connection", "").lower() != "close"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces():
                yield piece
        except _FAILURES as error:
            raise _read_error(error) from error

    async def aclose(self) -> None:
        """Keep the connection, or close it, which tells the other side to stop."""
        if self._is_read and self._is_kept and len(self._idle) < MAX_IDLE:
            self._idle.append(self._connection)
        else:
            self._connection.close()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._is_read:
            return
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            async for piece in self._chunks():
                yield piece
        elif "content-length" in self._headers:
            async for piece in self._exactly(int(self._headers["content-length"])):
                yield piece
        else:
            self._is_kept = False  # the answer ends with the connection
            while piece := await self._connection.reader.read(_PIECE):
                yield piece
        self._is_read = True

    async def _chunks(self) -> AsyncIterator[bytes]:
        reader = self._connection.reader
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            async for piece in self._exactly(size):
                yield piece
            if await reader.readexactly(2) != b"\r\n":
                raise ValueError("a chunk is longer than it says")
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers

    async def _exactly(self, num_bytes: int) -> AsyncIterator[bytes]:
        if num_bytes < 0:
            raise ValueError("a length is below 0")
        while num_bytes:
            piece = await self._connection.reader.read(min(num_bytes, _PIECE))
            if not piece:
                raise ConnectionError("the answer was cut")
            num_bytes -= len(piece)
            yield piece


def _written(request: httpx.Request, body: bytes) -> bytes:
    """Return a request as it goes over the wire."""
    target = request.url.raw_path
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), target)]
    lines += [b"%b: %b" % pair for pair in request.headers.raw]
    return b"\r\n".join([*lines, b"", body])


def _read_error(error: BaseException) -> httpx.TransportError:
    """Return a failure as httpx names it: a connection that broke, or words that are not HTTP."""
    if isinstance(error, asyncio.IncompleteReadError):
        return httpx.ReadError("the answer was cut")
    if isinstance(error, OSError):
        return httpx.ReadError(_words(error) or "the connection broke")
    return httpx.RemoteProtocolError(f"this is not HTTP: {error}")


def _words(error: OSError | UnicodeError) -> str:
    """Return the system's own words for a failure, without numbers and addresses."""
    if isinstance(error, UnicodeError):
        return "its host is no name"
    if isinstance(error, ssl.SSLError):  # its numbers are not the system's
        told = getattr(error, "verify_message", "") or error.reason or "the handshake failed"
        return f"TLS: {told.lower().replace('_', ' ')}"
    if error.errno is not None and error.errno > 0:  # below are hosts that nobody knows
        return os.strerror(error.errno)
    return error.strerror or str(error)
