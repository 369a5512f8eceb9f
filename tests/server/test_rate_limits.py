import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

from asgi_calls import Called, Client
from headlong.server.metrics import Metrics
from headlong.server.middleware import add_middleware
from headlong.server.settings import ApiKey, ServerSettings

TWO_KEYS = (ApiKey("secret-of-alice", "alice", max_concurrent=1), ApiKey("secret-of-bob", "bob"))
ALICE, BOB = ({"authorization": f"Bearer {key.key}"} for key in TWO_KEYS)


def limited(settings: ServerSettings) -> tuple[Client, FastAPI]:
    """Return a client of a small app behind all middleware."""
    app = FastAPI()
    add_middleware(app, settings, Metrics())
    app.state.cancelled = asyncio.Event()

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.post("/json")
    async def parsed(body: dict[str, int]) -> int:
        return len(body)

    @app.post("/wait/{seconds}")
    async def wait(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            app.state.cancelled.set()
            raise
        return "done"

    @app.post("/stream/{num}")
    async def stream(num: int) -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            for number in range(num):
                yield f"data: {number}\n\n".encode()
                await asyncio.sleep(0.05)

        return StreamingResponse(events(), media_type="text/event-stream")

    return Client(app), app


@pytest.mark.parametrize("path", ["/echo", "/json"])
def test_a_body_is_cut_where_it_gets_too_large(path: str) -> None:
    """Also one that never said how large it would be; the app does not see the end of it."""
    client, _ = limited(ServerSettings(max_body_bytes=1024))
    answer = client.post(path, [b"x" * 600, b"x" * 600, b"x" * 600])
    assert answer.status == 413
    assert answer.error["code"] == "body_too_large"
    assert "1,024" in answer.error["message"]
    assert answer.headers["connection"] == "close"


def test_a_declared_length_is_enough_to_refuse() -> None:
    client, _ = limited(ServerSettings(max_body_bytes=1024))
    answer = client.post("/echo", [10.0], content_length="5000", expect="100-continue")
    assert answer.status == 413
    assert "5,000" in answer.error["message"]


def test_a_client_may_finish_sending_so_that_it_reads_the_refusal() -> None:
    """Closing while it still sends would tear the connection, and the answer with it."""
    client, _ = limited(ServerSettings(max_body_bytes=1024))
    parts: list[bytes | float] = [b"x" * 2000] * 50
    headers: dict[str, str]
    for headers in ({}, {"content_length": "100000"}):
        answer = client.post("/echo", parts, **headers)
        assert answer.status == 413
        assert answer.num_unread == 0


def test_a_body_of_exactly_the_limit_passes() -> None:
    client, _ = limited(ServerSettings(max_body_bytes=1024))
    answer = client.post("/echo", [b"x" * 1000, b"x" * 24])
    assert (answer.status, answer.body) == (200, b"1024")


def test_a_body_that_drips_is_cut() -> None:
    client, _ = limited(ServerSettings(body_timeout_s=0.1))
    answer = client.post("/echo", [b"x", 5.0, b"x"])
    assert (answer.status, answer.error["code"]) == (408, "body_too_slow")


def test_requests_above_a_limit_are_told_when_to_come_back() -> None:
    client, app = limited(ServerSettings(max_concurrent=2))

    async def ask() -> list[Called]:
        first = [asyncio.create_task(client.call("POST", "/wait/0.2")) for _ in range(2)]
        await asyncio.sleep(0.05)
        third = await client.call("POST", "/wait/0.2")
        health = await client.call("GET", "/health")
        return [third, health, *await asyncio.gather(*first), await client.call("POST", "/echo")]

    third, health, *others = asyncio.run(ask())
    assert third.status == 429
    assert third.error["type"] == "rate_limit_error"
    assert "2 requests" in third.error["message"]
    assert int(third.headers["retry-after"]) >= 1
    assert health.status == 200
    assert [answer.status for answer in others] == [200, 200, 200]
    assert app.state.in_flight.num == 0


def test_each_key_has_its_own_limit() -> None:
    client, _ = limited(ServerSettings(api_keys=TWO_KEYS, max_concurrent_per_key=2))

    async def ask() -> list[int]:
        asks = [ALICE, ALICE, BOB, BOB, BOB]
        calls = [client.call("POST", "/wait/0.2", headers=dict(who)) for who in asks]
        return [answer.status for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [200, 429, 200, 200, 429]


def test_a_request_that_takes_too_long_is_ended_with_an_answer() -> None:
    client, app = limited(ServerSettings(request_timeout_s=0.1))
    answer = client.post("/wait/5")
    assert (answer.status, answer.error["code"]) == (504, "timeout")
    assert app.state.cancelled.is_set()


def test_a_stream_that_takes_too_long_ends_with_an_error_event() -> None:
    client, _ = limited(ServerSettings(request_timeout_s=0.22))
    answer = client.post("/stream/100")
    assert answer.status == 200
    *events, last, rest = answer.body.decode().split("\n\n")
    assert events[0] == "data: 0"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    assert rest == ""
    assert answer.messages[-1]["more_body"] is False


def test_no_layer_of_the_door_holds_a_stream_back() -> None:
    """Each event is out before the next one is made."""
    client, _ = limited(ServerSettings(cors_origins=("https://a.example",), log_prompts=True))

    async def ask() -> list[int]:
        called = Called()
        task = asyncio.create_task(client.call("POST", "/stream/4", called=called))
        seen = []
        while not task.done():
            seen.append(called.body.count(b"data:"))
            await asyncio.sleep(0.01)
        return seen

    assert {1, 2, 3, 4} <= set(asyncio.run(ask()))


def test_while_draining_work_and_health_get_503() -> None:
    client, app = limited(ServerSettings())

    async def ask() -> tuple[Called, Called, Called, bool]:
        running = asyncio.create_task(client.call("POST", "/wait/0.1"))
        await asyncio.sleep(0.02)
        app.state.in_flight.is_draining = True
        refused = await client.call("POST", "/echo")
        health = await client.call("GET", "/health")
        assert not await app.state.in_flight.wait_idle(0.01)
        is_idle = await app.state.in_flight.wait_idle(2)
        return refused, health, await running, is_idle

    refused, health, running, is_idle = asyncio.run(ask())
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert "retry-after" in refused.headers
    assert health.status == 503
    assert running.status == 200
    assert is_idle
