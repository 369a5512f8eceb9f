"""One connection: headers must come in time; answers may take as long as they like."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from headlong.server.http_protocol import TimedHttpProtocol

TIMEOUT_S = 0.3
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def slow_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer after more time than headers may take."""
    await asyncio.sleep(2 * TIMEOUT_S)
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def converse(talk: Talk) -> float:
    """Let a client talk to a server on one connection; return how long that took."""

    async def main() -> None:
        config = uvicorn.Config(slow_app, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: TimedHttpProtocol(TIMEOUT_S, config=config, server_state=state, app_state={}),
            "127.0.0.1",
            0,
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.wait_for(talk(reader, writer), 10)
            writer.close()

    began_s = time.perf_counter()
    asyncio.run(main())
    return time.perf_counter() - began_s


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a header now and then, without end, until the server hangs up."""
    closed = asyncio.ensure_future(reader.read())
    while not closed.done():
        writer.write(b"X-More: 1\r\n")
        await asyncio.wait([closed], timeout=TIMEOUT_S / 5)
    assert await closed == b""


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a whole request and read its answer."""
    writer.write(REQUEST)
    await asyncio.sleep(TIMEOUT_S / 5)
    writer.write(b"\r\n")
    assert b"200 OK" in await reader.readuntil(b"ok")


@pytest.mark.parametrize("beginning", [b"", REQUEST], ids=["nothing", "half"])
def test_headers_that_never_end_are_hung_up_on(beginning: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        await (drip(reader, writer) if beginning else reader.read())

    assert TIMEOUT_S <= converse(talk) < 20 * TIMEOUT_S


def test_a_slow_answer_is_waited_for_and_the_next_request_has_its_own_time() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ask(reader, writer)
        await ask(reader, writer)
        writer.write(REQUEST)
        await drip(reader, writer)

    assert 5 * TIMEOUT_S <= converse(talk) < 30 * TIMEOUT_S
