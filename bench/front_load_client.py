"""The client of `front_load.py`: one request over a bare socket, and what the answer is worth.

A connection for each request and no library: what it costs itself must not show.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

REFUSED = (429, 503)


@dataclass(frozen=True)
class Asked:
    """One request and its right answer."""

    number: int
    prompt: str
    num_tokens: int
    is_stream: bool
    mtp: str
    expected: str


@dataclass(frozen=True)
class Answer:
    """What came of it."""

    number: int
    is_stream: bool
    kind: str
    """right; refused: before it was taken in; told: with an error; lost, twice, mixed up."""
    seen: str
    first_s: float
    total_s: float


async def ask(url: str, asked: Asked, most_s: float) -> Answer:
    """Ask a server."""
    body: dict[str, Any] = {
        "prompt": asked.prompt,
        "max_tokens": asked.num_tokens,
        "temperature": 0,
        "stream": asked.is_stream,
        "mtp": asked.mtp,
    }
    begin, wire = time.monotonic(), _Wire()
    try:
        async with asyncio.timeout(most_s):
            await wire.exchange(url, json.dumps(body).encode())
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        wire.problem = repr(error)
    kind, seen = _judge(wire, asked)
    first_s = (wire.first_s or time.monotonic()) - begin
    return Answer(asked.number, asked.is_stream, kind, seen, first_s, time.monotonic() - begin)


def _judge(wire: "_Wire", asked: Asked) -> tuple[str, str]:
    """Return what an answer is worth, and what is wrong with it."""
    if wire.problem:
        return "lost", wire.problem
    if wire.status in REFUSED:
        return "refused", wire.text[:200]
    if wire.status != 200:
        return "told", f"{wire.status} {wire.text[:200]}"
    events = _events(wire.text)
    errors = [one["error"] for one in events if "error" in one]
    if errors:
        return "told", str(errors[0])[:200]
    choices = [choice for one in events for choice in one["choices"]]
    num_ends = sum(choice.get("finish_reason") is not None for choice in choices)
    said = "".join(choice["text"] for choice in choices)
    if num_ends == 0 or (asked.is_stream and not wire.text.rstrip().endswith("[DONE]")):
        return "lost", f"no end behind {said[-40:]!r}"
    if num_ends > 1 or (asked.expected and said.count(asked.expected) > 1):
        return "twice", f"{num_ends} ends: {said[:200]!r}"
    if said != asked.expected:
        return "mixed up", f"{said[:100]!r} instead of {asked.expected[:100]!r}"
    return "right", ""


def _events(text: str) -> list[dict[str, Any]]:
    """Return the JSON of a stream or of a whole answer."""
    if not text.startswith(("data:", ":", "event:")):
        return [json.loads(text)]
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


class _Wire:
    """One exchange over a socket of its own."""

    status = 0
    text = ""
    problem = ""
    first_s: float | None = None

    async def exchange(self, url: str, body: bytes) -> None:
        """Send a request and read the answer to its end."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            told = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            self.status = int(told.split()[1])
            if "transfer-encoding: chunked" in told:
                self.text = b"".join([chunk async for chunk in self._chunks(reader)]).decode()
            else:
                length = int(told.partition("content-length:")[2].split()[0])
                self.text = (await reader.readexactly(length)).decode()
                self.first_s = time.monotonic()
        finally:
            writer.close()

    async def _chunks(self, reader: asyncio.StreamReader) -> Any:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            chunk = await reader.readexactly(size + 2)
            if self.first_s is None and b'"text"' in chunk:
                self.first_s = time.monotonic()
            yield chunk[:-2]
