"""A server as a side: any that speaks OpenAI's streaming API.

In:  an address, a model's name, extra fields for the body, questions.
Out: answers timed at this end of the wire. A busy server (429, 503) is asked again a few times, and
     waiting for it is in no figure. Tokens are those of `usage` where the server gives it.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx

from headlong.bench.event_stream import EventReader, read_error, read_finish_reason, read_piece
from headlong.bench.measure import Question, TimedAnswer, time_pieces
from headlong.decode.stats import DecodeStats
from headlong.errors import HeadlongError, RequestError

MAX_RETRIES = 5
MAX_WAIT_S = 30.0
_WARM_UP_TOKENS = 8
BUSY = (429, 503)
CONNECT_S = 10.0
IDLE_S = 2.0
"""A connection that was idle for longer is not used again: while the other side answers, a server
may hang up, most after 5 s."""

READ_AHEAD = (
    "A and B are one server: it read every prompt once before the clock ran, since what it keeps "
    "of one side's prompt would be spared the other; the time for prompts is hardly in the figures."
)

FORM_ERRORS = (AttributeError, LookupError, TypeError, ValueError)
"""What reading an event runs into whose fields are not where OpenAI has them."""


class ServerError(HeadlongError):
    """A server cannot be reached, or does not answer as it should."""


class EmptyAnswerError(ServerError):
    """A server ended an answer without any text."""


@dataclass(slots=True)
class AnswerStream:
    """What has arrived of an answer so far."""

    reader: EventReader = field(default_factory=EventReader)
    times_s: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    """The last `usage`, `mtp` and `timings` that were sent."""

    def feed(self, data: bytes) -> None:
        """Take in what has just arrived."""
        now_s = time.perf_counter()
        for event in self.reader.feed(data):
            self._add(event, now_s)

    @contextmanager
    def until_closed(self) -> Iterator[None]:
        """Wrap the reading; how a server closes the connection once it is done does not matter."""
        try:
            yield
        except httpx.HTTPError:
            if not self.reader.is_done:
                raise
        for event in self.reader.end():
            self._add(event, time.perf_counter())

    def _add(self, event: dict[str, Any], now_s: float) -> None:
        if piece := read_piece(event):
            self.times_s.append(now_s)
            self.pieces.append(piece)
        self.finish_reason = read_finish_reason(event) or self.finish_reason
        for name in ("usage", "mtp", "timings"):
            if isinstance(event.get(name), dict):
                self.extras[name] = event[name]


@dataclass(slots=True, eq=False)
class HttpSide:
    """Asks a server over HTTP; keeps its connection, as any client that asks often would."""

    name: str
    url: str
    """With the version: http://127.0.0.1:8080/v1."""
    model: str
    body: Mapping[str, Any] = field(default_factory=dict)
    """Extra fields of every request; a field that is None is not sent."""
    api_key: str | None = field(default=None, repr=False)
    is_raw: bool = False
    """Ask for the continuation of a text where the prompt is one."""
    timeout_s: float = 300.0
    reads_ahead: bool = False
    """Have every prompt read once, untimed: for sides that share a server, and so its cache."""
    _client: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(keepalive_expiry=IDLE_S)
        self._client = httpx.Client(limits=limits, **client_options(self.api_key, self.timeout_s))

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    @property
    def label(self) -> str:
        """The address, with what is special about the requests."""
        extra = ", ".join(f"{name}={value}" for name, value in self.body.items())
        return f"{self.url} ({extra})" if extra else self.url

    def warm_up(self, question: Question) -> None:
        """Ask for a few tokens; a server that cannot be used is found out here."""
        with suppress(EmptyAnswerError):  # so few may be half a tool call, which no server shows
            self.answer(replace(question, max_tokens=_WARM_UP_TOKENS))

    def answer(self, question: Question) -> TimedAnswer:
        """Put a question to the server and time the stream."""
        if self.reads_ahead:
            with suppress(ServerError):  # if there is no answer, it is said below
                self._answer(replace(question, max_tokens=1))
        return self._answer(question)

    def _answer(self, question: Question) -> TimedAnswer:
        path, body = self.make_request(question)
        for num_retries in range(MAX_RETRIES + 1):
            found = self._ask(path, body, num_retries)
            if isinstance(found, TimedAnswer):
                return found
            time.sleep(found)
        raise AssertionError("the last try either answers or raises")

    def _ask(self, path: str, body: Mapping[str, Any], num_retries: int) -> TimedAnswer | float:
        """Try once; return the answer, or how many seconds to wait when the server is busy."""
        began_s = time.perf_counter()
        with (
            naming_errors(self.url),
            self._client.stream("POST", f"{self.url}{path}", json=body) as response,
        ):
            if response.status_code in BUSY and num_retries < MAX_RETRIES:
                return retry_after_s(response, num_retries)
            if response.status_code != httpx.codes.OK:
                response.read()
                raise refuse(self.url, response.status_code, response.text)
            received = AnswerStream()
            with received.until_closed():
                for data in response.iter_bytes():
                    received.feed(data)
            return self.make_answer(received, began_s, num_retries)

    def make_request(self, question: Question) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a question."""
        prompt = question.prompt
        asks_text = self.is_raw and prompt.text is not None
        what = {"prompt": prompt.text} if asks_text else {"messages": list(prompt.messages)}
        body = {
            "model": self.model,
            **what,
            "tools": list(prompt.tools) or None,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.body,
        }
        path = "/completions" if asks_text else "/chat/completions"
        return path, {name: value for name, value in body.items() if value is not None}

    def make_answer(self, received: AnswerStream, began_s: float, num_retries: int) -> TimedAnswer:
        """Turn what was received into figures."""
        if not received.times_s:
            remedy = "Leave the prompt out, or see the server's log."
            raise EmptyAnswerError(f"{self.url} sent an empty answer.", remedy)
        if received.finish_reason is None:
            problem = f"{self.url} ended its answer in the middle."
            raise ServerError(problem, "See the server's log.")
        usage = received.extras.get("usage", {})
        counted = _whole(usage.get("completion_tokens"))
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        # Where our own server tells what the prompt took, and the head's part of it.
        mtp = received.extras.get("mtp", {})
        prefill_s, prefill_head_s = (
            mtp[name] / 1e3 if name in mtp else None for name in ("prefill_ms", "prefill_head_ms")
        )
        return TimedAnswer(
            num_tokens=counted or len(received.pieces),
            ttft_s=received.times_s[0] - began_s,
            total_s=received.times_s[-1] - began_s,
            text="".join(received.pieces),
            num_prompt_tokens=_whole(usage.get("prompt_tokens")),
            num_cached_tokens=_whole(cached),
            finish_reason=received.finish_reason,
            acceptance=_read_acceptance(received.extras),
            prefill_s=prefill_s,
            prefill_head_s=prefill_head_s,
            is_counted_by_server=bool(counted),
            num_retries=num_retries,
            **time_pieces(received.times_s),
        )


@contextmanager
def naming_errors(url: str) -> Iterator[None]:
    """Say what a server did where a request to it fails, or its events are not OpenAI's."""
    try:
        yield
    except httpx.HTTPError as error:
        raise unreachable(url, error) from error
    except FORM_ERRORS as error:
        problem = f"{url} sent events of a form that is not OpenAI's: {error}."
        raise ServerError(problem, "See the server's log.") from error


def refuse(url: str, status: int, body: str) -> ServerError:
    """Say what a server said instead of an answer."""
    try:
        said = read_error(json.loads(body))
    except ValueError:
        said = body[:200].strip() or "nothing more"
    remedies = {
        401: "Name the variable that holds the key with --api-key-env.",
        404: "See whether the address ends in /v1 and the model is named as the server does.",
        429: "Ask it less, or raise its limits.",
    }
    remedy = remedies.get(status, "See the server's log.")
    return ServerError(f"{url} answered {status}: {said}", remedy)


def clean_url(url: str) -> str:
    """Return a server's address up to and with its version; refuse what is none."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"{url!r} is no address.", "Give one like http://127.0.0.1:8080/v1.")
    if parts.username or parts.password:
        raise RequestError(
            "The address holds a name or password, which would end up in the results.",
            "Put the key into an environment variable and name it with --api-key-env.",
        )
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions"):
        path = path.removesuffix(ending)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def find_model(url: str, api_key: str | None) -> str:
    """Ask a server which model it has."""
    try:
        with httpx.Client(**client_options(api_key, CONNECT_S)) as client:
            response = client.get(f"{url}/models")
        models = response.json()["data"] if response.status_code == httpx.codes.OK else []
        return str(models[0]["id"])
    except httpx.HTTPError as error:
        raise unreachable(url, error) from error
    except (ValueError, LookupError, TypeError) as error:
        problem = f"{url} does not say which models it has."
        raise ServerError(problem, "Name one with --model.") from error


def client_options(api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the key a client shows, and its longest silence, shorter until it is connected."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
    return {"headers": headers, "timeout": timeout}


def unreachable(url: str, error: httpx.HTTPError) -> ServerError:
    """Say why a server was not reached, or was lost."""
    if isinstance(error, httpx.TimeoutException):
        what = f"did not answer in time ({type(error).__name__})."
    elif isinstance(error, httpx.ConnectError):
        what = f"cannot be reached: {str(error).rstrip('.')}."
    else:
        what = f"broke off: {str(error).rstrip('.') or type(error).__name__}."
    return ServerError(f"{url} {what}", "Is the server running, and is the address right?")


def retry_after_s(response: httpx.Response, num_retries: int) -> float:
    """Return how long a busy server asks to wait, bounded; doubling where it does not say."""
    try:
        wanted = float(response.headers.get("Retry-After", ""))
    except ValueError:
        wanted = 0.5 * 2**num_retries
    return min(max(wanted, 0.0), MAX_WAIT_S)


def _read_acceptance(extras: Mapping[str, Any]) -> DecodeStats | None:
    """Read what became of drafts from our own `mtp` or llama.cpp's `timings`."""
    mtp, timings = extras.get("mtp"), extras.get("timings")
    if mtp is not None and mtp.get("rounds"):
        rounds = int(mtp["rounds"])
        depths = [round(share * rounds) for share in mtp.get("acceptance_at_depth", ())]
        drafted, accepted = int(mtp["num_drafted"]), int(mtp["num_accepted"])
        return DecodeStats(rounds, drafted, accepted, accepted_at_depth=depths)
    if timings is not None and "draft_n" in timings:
        accepted = int(timings.get("draft_n_accepted", 0))
        # Every round adds one token of the model's own.
        rounds = max(1, int(timings.get("predicted_n", 0)) - accepted)
        return DecodeStats(rounds, int(timings["draft_n"]), accepted)
    return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
