"""A server of somebody else's making: OpenAI's streaming API in a few lines, and its failures.

Written from OpenAI's documentation alone; knows nothing of Headlong. The body's `mode` says how the
server behaves; without one it answers "tok0 tok1 …" up to max_tokens.
"""

import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

MTP = {
    "rounds": 4, "num_drafted": 8, "num_accepted": 3, "acceptance_at_depth": [0.5, 0.25],
    "prefill_ms": 90.0, "prefill_head_ms": 10.0,
}  # fmt: skip
EXTRAS: dict[str, dict[str, Any]] = {
    "mtp": {"mtp": MTP},
    "timings": {"timings": {"predicted_n": 9, "draft_n": 6, "draft_n_accepted": 4}},
}


@dataclass
class OtherServer:
    """Where it listens, and what it has been asked."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    clients: list[object] = field(default_factory=list)
    """Address and port of whoever asked: one for each connection."""
    token_s: float = 0.0
    """Seconds for each token."""
    num_busy: int = 0
    """How many requests will be answered with 429 first."""
    dies_after: int | None = None
    """The request from which on every connection is cut."""

    async def answer(self, request: Request) -> Response:
        """Answer one request."""
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.url.path)
        self.clients.append(request.client)
        self.keys.append(request.headers.get("authorization"))
        if self.num_busy:
            self.num_busy -= 1
            busy = {"error": {"message": "slow down"}}
            return JSONResponse(busy, 429, headers={"Retry-After": "0"})
        mode = body.get("mode", "")
        if self.dies_after is not None and len(self.bodies) > self.dies_after:
            mode = "cut"
        refusals: dict[str, Response] = {
            "broken": JSONResponse({"error": {"message": "out of memory"}}, 500),
            "unknown": JSONResponse({"detail": "no such model"}, 404),
            "html": PlainTextResponse("<html>Hello</html>"),
            "whole": JSONResponse({"choices": [{"message": {"content": "hi"}}]}),
            "locked": JSONResponse({"error": {"message": "who are you?"}}, 401),
        }
        if mode in refusals:
            return refusals[mode]
        return StreamingResponse(self._stream(body, mode), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any], mode: str) -> AsyncIterator[str]:
        is_chat = "messages" in body
        yield ": a comment keeps the line open\n\n"
        for number in range(0 if mode == "empty" else body["max_tokens"]):
            if self.token_s:
                await anyio.sleep(self.token_s)
            text = "" if mode == "late" and body["max_tokens"] == 1 else f"tok{number} "
            choice = {"delta": {"content": text}} if is_chat else {"text": text}
            yield _event({"choices": [choice | {"index": 0}]})
            if number == 2 and mode == "cut":
                raise ConnectionError("the power is gone")
            if number == 2 and mode == "error":
                yield _event({"error": {"message": "the engine has stopped"}})
                return
            if number == 2 and mode in ("unfinished", "odd"):
                yield _event({"choices": [["odd"]]}) if mode == "odd" else ""
                return
        yield _event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if mode != "no_usage":
            details = {"cached_tokens": 3}
            usage = {"completion_tokens": body["max_tokens"], "prompt_tokens": 12}
            yield _event(
                {"choices": [], "usage": usage | {"prompt_tokens_details": details}}
                | EXTRAS.get(mode, {})
            )
        yield "data: [DONE]\n\n"
        if mode == "rude":
            raise ConnectionError("gone without a goodbye")


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


async def _models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [{"id": "other-model", "object": "model"}]})


@contextmanager
def run_other_server(**settings: Any) -> Iterator[OtherServer]:
    """Run the server on a free port for the length of a `with` block."""
    other = OtherServer(**settings)
    routes = [
        Route("/v1/chat/completions", other.answer, methods=["POST"]),
        Route("/v1/completions", other.answer, methods=["POST"]),
        Route("/v1/models", _models),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes), log_level="critical", lifespan="off", ws="none", access_log=False
    )
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    other.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield other
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
