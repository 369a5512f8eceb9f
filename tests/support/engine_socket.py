"""The socket side of scripted engines: whole answers, event streams, and ends in the middle."""

import asyncio
import socket
import struct


class Exchange:
    """One request's way back through the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(
        self,
        status: int,
        text: str,
        content_type: str = "application/json",
        retry_after: str | None = None,
    ) -> None:
        """Send a whole answer."""
        data = text.encode()
        more = "" if retry_after is None else f"Retry-After: {retry_after}\r\n"
        head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: {content_type}\r\n{more}"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await self._writer.drain()

    async def begin(self) -> None:
        """Send the head of a stream."""
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        self._writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())

    async def event(self, data: str) -> None:
        """Send one event."""
        await self._chunk(f"data: {data}\n\n".encode())

    async def finish(self) -> None:
        """End the stream in good order."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def break_off(self, kind: str) -> None:
        """Do what a fault does to the connection."""
        if kind == "garbage":
            await self.event('{"choices": [{"index": 0, "token_ids": [')
        elif kind == "error_event":
            await self.event('{"error":{"message":"EngineCore died","code":500}}')
        elif kind == "huge":
            await self._chunk(b'data: {"choices": "' + b"x" * (64 << 20))
        elif kind == "half_event":
            await self._chunk(b'data: {"object": "text_completion", "choices": [{"ind')
        elif kind == "reset":
            reset(self._writer)
        if kind in ("huge", "half_event", "cut"):
            self._writer.close()
        if self._writer.is_closing():
            raise BrokenPipeError(kind)

    def check_reader(self) -> None:
        """Give up where nobody reads any more.

        Raises:
            ConnectionError: The other side has closed.
        """
        if self._reader.at_eof() or self._writer.is_closing():
            raise ConnectionResetError("nobody reads")


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset: what the other side has not read yet is lost."""
    own = writer.get_extra_info("socket")
    if own is not None and own.fileno() >= 0:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
