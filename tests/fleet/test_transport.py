"""Connections to replicas against servers that behave, and against raw sockets that do not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from engine_faults import Fault
from headlong.fleet.exchange import CONNECT_TIMEOUT_S
from headlong.fleet.transport import ReplicaTransport
from http_engine import HttpEngine, run_engine

ASK = {"prompt": [5, 6], "max_tokens": 6, "temperature": 0, "stream": True}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[str, list[int]]]:
    """Run a server that calls `answer` for each connection with its number; count them."""
    connections, writers = list[int](), list[asyncio.StreamWriter]()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        writers.append(writer)
        await answer(reader, writer, connections[-1])
        writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0.01)


def client() -> httpx.AsyncClient:
    """Return a client over the transport."""
    return httpx.AsyncClient(transport=ReplicaTransport(CONNECT_TIMEOUT_S), timeout=None)


def say(text: bytes) -> Answer:
    """Return a server that answers everything with `text`, as often as it is asked."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        while (await reader.read(4096)) != b"":
            writer.write(text)
            await writer.drain()
            if b"Connection: close" in text or b"Content-Length: 9" in text:
                return

    return answer


async def get(text: bytes) -> httpx.Response:
    """Return what a client makes of an answer."""
    async with serving(say(text)) as (url, _), client() as http:
        return await http.get(url)


def test_connections_are_kept_and_used_again() -> None:
    async def run() -> int:
        async with serving(say(OK)) as (url, connections), client() as http:
            for _ in range(3):
                assert (await http.get(url)).text == "hi"
            return len(connections)

    assert asyncio.run(run()) == 1


def test_a_kept_connection_that_died_is_replaced() -> None:
    """llama.cpp's server closes behind every stream and does not say so."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        await reader.read(4096)
        writer.write(OK)
        if number == 0:
            await reader.read(4096)  # takes the next request in, and closes

    async def run() -> int:
        async with serving(answer) as (url, connections), client() as http:
            assert (await http.get(url)).text == "hi"
            assert (await http.get(url)).text == "hi"
            return len(connections)

    assert asyncio.run(run()) == 2


def test_what_came_unasked_is_no_answer_to_the_next_request() -> None:
    """An engine that answered twice would give one client's text to another."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        await reader.read(4096)
        writer.write(OK + OK.replace(b"hi", b"no") if number == 0 else OK)
        await reader.read(4096)

    async def run() -> list[str]:
        async with serving(answer) as (url, _), client() as http:
            return [(await http.get(url)).text for _ in range(2)]

    assert asyncio.run(run()) == ["hi", "hi"]


def test_a_new_connection_that_dies_is_told() -> None:
    """A request that a replica took in and died of is not sent to it again."""
    with pytest.raises(httpx.ReadError, match="without an answer"):
        asyncio.run(get_from_nobody())


async def get_from_nobody() -> None:
    """Ask a server that hangs up."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        await reader.read(4096)

    async with serving(answer) as (url, connections), client() as http:
        try:
            await http.get(url)
        finally:
            assert len(connections) == 1


@pytest.mark.parametrize(
    "text",
    [
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhi",
        CHUNKED + b"1\r\nh\r\n1;x=1\r\ni\r\n0\r\na: b\r\n\r\n",
    ],
)
def test_bodies_are_read_however_they_end(text: bytes) -> None:
    assert asyncio.run(get(text)).text == "hi"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", httpx.ReadError),
        (b"hello\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 OK\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nhi", httpx.RemoteProtocolError),
        (CHUNKED + b"zz\r\n", httpx.RemoteProtocolError),
        (CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n", httpx.RemoteProtocolError),
        (CHUNKED + b"1\r\nhi\r\n", httpx.RemoteProtocolError),
    ],
)
def test_what_is_not_http_is_told(text: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        asyncio.run(get(text))


def test_nobody_at_an_address_is_told_at_once() -> None:
    async def run() -> None:
        async with client() as http:
            await http.get("http://127.0.0.1:9")

    with pytest.raises(httpx.ConnectError, match=r"^Connection refused$"):
        asyncio.run(run())


def test_a_failed_handshake_is_told_in_its_own_words() -> None:
    """Its number is one of the TLS library's, which the system calls something else."""

    async def run() -> None:
        async with serving(say(OK)) as (url, _), client() as http:
            await http.get(url.replace("http:", "https:"))

    with pytest.raises(httpx.ConnectError, match=r"(?i)^tls: wrong version number$"):
        asyncio.run(run())


def test_a_host_that_is_no_name_is_told() -> None:
    async def run() -> None:
        async with client() as http:
            await http.get("http://a..b:9")

    with pytest.raises(httpx.ConnectError, match="its host is no name"):
        asyncio.run(run())


def test_leaving_closes_the_connection() -> None:
    """It is how an engine learns that nobody waits any more."""

    async def run(engine: HttpEngine) -> None:
        async with client() as http:
            async with http.stream("POST", f"{engine.url}/v1/completions", json=ASK) as answer:
                await anext(answer.aiter_bytes())
            for _ in range(100):
                if engine.num_left:
                    return
                await asyncio.sleep(0.05)

    with run_engine(token_s=0.05) as engine:
        asyncio.run(run(engine))
        assert (engine.num_left, engine.num_finished) == (1, 0)


@pytest.mark.parametrize("kind", ["cut", "reset", "half_event"])
def test_streams_that_break_are_told(kind: str) -> None:
    async def run(engine: HttpEngine) -> None:
        async with client() as http:
            await http.post(f"{engine.url}/v1/completions", json=ASK)

    words = r"^(the answer was cut|Connection reset by peer)$"
    with (
        run_engine(choose_fault=lambda _: Fault(kind)) as engine,
        pytest.raises(httpx.ReadError, match=words),
    ):
        asyncio.run(run(engine))


def test_many_streams_at_once_all_end() -> None:
    async def run(engine: HttpEngine) -> list[str]:
        async with client() as http:
            asked = [http.post(f"{engine.url}/v1/completions", json=ASK) for _ in range(200)]
            return [answer.text for answer in await asyncio.gather(*asked)]

    with run_engine(token_s=0.01) as engine:
        assert set(map(len, asyncio.run(run(engine)))) == {len(asyncio.run(run(engine))[0])}
