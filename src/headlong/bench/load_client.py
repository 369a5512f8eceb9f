"""One request of a load: asked without waiting for others, and told apart by how it ended.

In:  a question, a mode. Out: a `Run` with the times of its pieces; a busy server (429, 503) and a
     broken answer are outcomes like any other, not exceptions. Asks once: under load the retries
     of a client would hide what the server does.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import httpx

from headlong.bench.http_side import (
    BUSY,
    FORM_ERRORS,
    Heard,
    HttpSide,
    make_headers,
    make_timeout,
    odd_form,
    refuse,
    retry_after_s,
    unreachable,
)
from headlong.bench.measure import Answer, Question, Run
from headlong.errors import HeadlongError

MAX_CONNECTIONS = 1024


class Ending(StrEnum):
    """How a request ended."""

    DONE = "done"
    BUSY = "busy"
    """Turned away with 429 or 503."""
    EMPTY = "empty"
    """Ended at once, without any text: the model's right, but there is nothing to time."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and what became of it."""

    run: Run
    ending: Ending
    began_s: float
    """On the clock of `time.perf_counter`, like `times_s`."""
    times_s: tuple[float, ...] = ()
    """When each piece of the answer came."""
    wait_s: float = 0.0
    """How long a busy server asks to stay away."""


class LoadClient:
    """Asks a server over HTTP, any number of requests at once."""

    def __init__(self, sides: Mapping[str, HttpSide], timeout_s: float) -> None:
        """Take one side for each mode; they know address, model and body."""
        self._sides = sides
        side = next(iter(sides.values()))
        self._http = httpx.AsyncClient(
            headers=make_headers(side.api_key),
            timeout=make_timeout(timeout_s),
            limits=httpx.Limits(
                max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
            ),
        )

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def ask(self, question: Question, mode: str) -> Asked:
        """Put one question and read the whole answer."""
        began_s = time.perf_counter()
        heard = Heard()
        try:
            found = await self._ask(question, self._sides[mode], heard, began_s)
        except HeadlongError as error:
            run = Run(mode, question, 0, error=str(error))
            return Asked(run, Ending.FAILED, began_s, tuple(heard.times_s))
        if isinstance(found, Answer):
            run = Run(mode, question, 0, answer=found)
            return Asked(run, Ending.DONE, began_s, tuple(heard.times_s))
        if found is None:
            run = Run(mode, question, 0, error="The answer was empty.")
            return Asked(run, Ending.EMPTY, began_s)
        run = Run(mode, question, 0, error="The server was busy.")
        return Asked(run, Ending.BUSY, began_s, wait_s=found)

    async def _ask(
        self, question: Question, side: HttpSide, heard: Heard, began_s: float
    ) -> Answer | float | None:
        """Return the answer, None for an empty one, or how long a busy server asks to stay away."""
        path, body = side.make_request(question)
        try:
            async with self._http.stream("POST", f"{side.url}{path}", json=body) as response:
                if response.status_code in BUSY:
                    return retry_after_s(response, 0)
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                    raise refuse(side.url, response.status_code, response.text)
                await _hear(response, heard)
            if heard.finish_reason is not None and not heard.pieces:
                return None
            return side.make_answer(heard, began_s, 0)
        except httpx.HTTPError as error:
            raise unreachable(side.url, error) from error
        except FORM_ERRORS as error:
            raise odd_form(side.url, error) from error


async def _hear(response: httpx.Response, heard: Heard) -> None:
    with heard.to_the_end():
        async for data in response.aiter_bytes():
            heard.hear(data)
