"""An exchange: one request sent to one replica, its answer read as it comes.

In:  a request and the replica that is to run it.
Out: checked `Delta`s, in order, the last one with `is_end`. Everything else is an error: what the
     replica refuses (`RequestError`, `BusyError`), how it fails (`EngineError`), and what cannot
     be the answer (`GarbledError`). Knows nothing of other replicas; ends with its connection.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx

from headlong.decode.request import Request
from headlong.errors import EngineError, GarbledError, HeadlongError
from headlong.fleet.answer_check import AnswerCheck, SpeltAnswerCheck
from headlong.fleet.dialect import AnswerReader, Delta
from headlong.fleet.replica import Replica
from headlong.fleet.transport import ReplicaTransport

CONNECT_TIMEOUT_S = 3.0
"""How long a replica may take to accept a connection."""

MAX_EVENT_BYTES = 16 << 20
"""Of one event; prompt logprobs are the longest."""

STATISTICS_S = 2.0
"""How long an answer that is complete waits for what engines tell behind it."""

_SLOW_TOKEN_S = 0.5
"""What a token may take on average in an answer that comes in one piece."""

_REST_S = 0.5
_COMMENTS = (b":", b"event:", b"id:", b"retry:")


class UnreachableError(EngineError):
    """A replica has not even seen the request."""


def make_http() -> httpx.AsyncClient:
    """Return a client for replicas: as many connections as there are requests, kept open."""
    return httpx.AsyncClient(
        transport=ReplicaTransport(CONNECT_TIMEOUT_S),
        timeout=None,
        trust_env=False,  # a proxy for the web is none for one's own machines
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """How long replicas may be silent before they count as stalled."""

    first_token_s: float = 120.0
    """Until the first token, their own queue included; a whole answer has more by its length."""
    next_token_s: float = 30.0
    """Until every later one."""


@dataclass(frozen=True, slots=True)
class Exchanger:
    """Sends requests to replicas; used in one event loop."""

    http: httpx.AsyncClient
    vocab_size: int
    patience: Patience = field(default_factory=Patience)
    follow: type[AnswerCheck] = AnswerCheck
    """What becomes of answers on their way."""

    async def run(
        self, replica: Replica, request: Request, receive: Callable[[Delta], None]
    ) -> None:
        """Run a request; `receive` gets what comes, as it comes."""
        replica.num_in_flight += 1
        try:
            async with asyncio.timeout(self.patience.first_token_s) as limit:
                await self._run(replica, request, receive, limit)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            problem = f"The replica {replica.name} cannot be reached: {_words(error)}."
            raise UnreachableError(problem, "Start it, or check its address.") from None
        except httpx.HTTPError as error:
            problem = f"The replica {replica.name} broke off: {_words(error)}."
            raise EngineError(problem, "See its log.") from None
        except TimeoutError:
            problem = f"The replica {replica.name} has sent nothing for too long."
            remedy = "Raise engine_first_token_s or engine_next_token_s if it is merely slow."
            raise EngineError(problem, remedy) from None
        finally:
            replica.num_in_flight -= 1

    async def ask(self, replica: Replica, request: Request) -> Delta:
        """Run a request and return its whole answer as one delta."""
        deltas = list[Delta]()
        await self.run(replica, request, deltas.append)
        last = deltas[-1]
        return Delta(
            tuple(token_id for delta in deltas for token_id in delta.token_ids),
            tuple(one for delta in deltas for one in delta.logprobs),
            last.finish_reason,
            last.stats,
            last.num_cached_tokens,
            last.prompt_logprobs,
            is_end=True,
        )

    async def _run(
        self,
        replica: Replica,
        request: Request,
        receive: Callable[[Delta], None],
        limit: asyncio.Timeout,
    ) -> None:
        call = replica.dialect.write(request, replica.model)
        if call.is_whole:
            allowed_s = self.patience.first_token_s + _SLOW_TOKEN_S * request.stopping.max_tokens
            limit.reschedule(asyncio.get_running_loop().time() + allowed_s)
        follow = self.follow if replica.knows_tokens else SpeltAnswerCheck
        check = follow(request, self.vocab_size)
        body = json.dumps(call.body).encode()
        headers = {"content-type": "application/json", **key_header(replica)}
        if not replica.dialect.keeps_connections:
            headers["connection"] = "close"
        url = f"{replica.url}{call.path}"
        async with self.http.stream("POST", url, content=body, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                body = await response.aread()
                retry_after = response.headers.get("retry-after")
                raise replica.dialect.refusal(response.status_code, body, retry_after)
            events = _events(response)

            def take(delta: Delta) -> None:
                receive(delta)
                limit.reschedule(asyncio.get_running_loop().time() + self.patience.next_token_s)

            try:
                await _follow(events, replica.dialect.reader(request), check, take)
            except (TimeoutError, httpx.HTTPError, HeadlongError):
                if not check.is_complete:  # else nothing is lost but its statistics
                    raise
            limit.reschedule(None)
            receive(check.end())
            await _read_rest(events)


async def _follow(
    events: AsyncIterator[str],
    reader: AnswerReader,
    check: AnswerCheck,
    take: Callable[[Delta], None],
) -> None:
    """Read events up to the one that says that nothing follows; `take` gets their tokens."""
    async with asyncio.timeout(None) as limit:
        async for checked in _deltas(events, reader, check):
            if checked.token_ids:
                take(checked)
            if check.is_complete and limit.when() is None:
                limit.reschedule(asyncio.get_running_loop().time() + STATISTICS_S)


async def _deltas(
    events: AsyncIterator[str], reader: AnswerReader, check: AnswerCheck
) -> AsyncIterator[Delta]:
    """Yield what events bring, up to the one that says that nothing follows."""
    async for event in events:
        delta = reader.read(event)
        yield check.read(delta)
        if delta.is_end:
            return


async def _read_rest(events: AsyncIterator[str]) -> None:
    """Read what is left of an answer that is complete, so that its connection is used again."""
    with contextlib.suppress(TimeoutError, httpx.HTTPError, GarbledError):
        async with asyncio.timeout(_REST_S):
            async for _ in events:
                pass


def key_header(replica: Replica) -> dict[str, str]:
    """Return the header that carries a replica's API key, if it has one."""
    return {} if replica.api_key is None else {"authorization": f"Bearer {replica.api_key}"}


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the events of an answer: server-sent ones, lines of JSON, or one JSON value."""
    if response.headers.get("content-type", "").startswith("application/json"):
        yield _text(await response.aread())
        return
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            line = line.strip()
            if line and not line.startswith(_COMMENTS):
                yield _text(line.removeprefix(b"data:"))
        if len(rest) > MAX_EVENT_BYTES:
            raise GarbledError("The engine sent a line that does not end.", "See its log.")
    if rest.strip():
        yield _text(rest.removeprefix(b"data:"))


def _text(event: bytes) -> str:
    try:
        return event.decode().strip()
    except UnicodeDecodeError:
        raise GarbledError("The engine sent what is not UTF-8.", "See its log.") from None


def _words(error: httpx.HTTPError) -> str:
    """Say what went wrong with a connection; some errors have no words of their own."""
    return str(error).rstrip(".") or type(error).__name__
