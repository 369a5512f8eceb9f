"""How a request travels to an engine."""

import asyncio

import httpx
import pytest

from headlong.config import StopParams
from headlong.decode.request import Request
from headlong.fleet.dialect import Dialect
from headlong.fleet.exchange import Exchanger
from headlong.fleet.llama_cpp_dialect import LlamaCppDialect
from headlong.fleet.replica import Replica
from headlong.fleet.vllm_dialect import VllmDialect
from recorded_answers import Recorded
from tiny_text import byte_level_tokenizer


@pytest.mark.parametrize(
    ("dialect", "engine", "wish"),
    [
        (VllmDialect(), "vllm-plain", "keep-alive"),
        (LlamaCppDialect(byte_level_tokenizer()), "llama.cpp-plain", "close"),
    ],
)
def test_connections_are_kept_where_that_holds(dialect: Dialect, engine: str, wish: str) -> None:
    """llama.cpp's server closes them unasked; the next request on one was lost now and then."""
    wishes = []

    def answer(request: httpx.Request) -> httpx.Response:
        wishes.append(request.headers["connection"])
        text = "\n".join(f"data: {event}\n" for event in Recorded(engine, "stream").events)
        return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})

    async def run() -> int:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            request = Request((9825, 42), stopping=StopParams(max_tokens=8))
            replica = Replica("http://engine", dialect)
            return len((await Exchanger(http, 49152).ask(replica, request)).token_ids)

    assert asyncio.run(run()) == 8
    assert wishes == [wish]
