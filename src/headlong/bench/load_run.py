"""A load: many requests at once, level after level, modes taking turns in slices of time.

In:  levels (so many at a time, or so many per second), prompts by class, a client.
Out: a `LoadLog`, kept while it goes on, so that nothing is lost when it is stopped.
Both modes of a pair of slices are asked the same questions in the same order, with arrivals at the
same moments. A request is asked once: under load the retries of a client would hide what the
server does.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, product
from random import Random
from typing import Protocol

import httpx

from headlong.bench import http_side
from headlong.bench.measure import DEFAULT_MAX_TOKENS, Question, Run, TimedAnswer
from headlong.bench.prompt_sets import BenchPrompt
from headlong.errors import HeadlongError, RequestError

MAX_CONNECTIONS = 1024

SLICE_S = 5.0
"""Slices are about this long; shorter ones would be mostly beginnings and ends."""

MAX_FAILURES = 3
"""So many failures in a row beyond one for each open request: the server is gone."""

MAX_OPEN = 512
"""Requests that may be open at once when arrivals do not wait for answers."""


class Ending(StrEnum):
    """How a request ended."""

    DONE = "done"
    BUSY = "busy"
    """Turned away with 429 or 503."""
    EMPTY = "empty"
    """Ended at once, without any text: the model's right, but there is nothing to time."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RequestRecord:
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

    def __init__(self, sides: Mapping[str, http_side.HttpSide], timeout_s: float) -> None:
        """Take one side for each mode; they know address, model and body."""
        self._sides = sides
        side = next(iter(sides.values()))
        limits = httpx.Limits(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
        )
        options = http_side.client_options(side.api_key, timeout_s)
        self._http = httpx.AsyncClient(limits=limits, **options)

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def ask(self, question: Question, mode: str) -> RequestRecord:
        """Put one question and read the whole answer."""
        began_s, side = time.perf_counter(), self._sides[mode]
        received = http_side.AnswerStream()
        answer, error, wait_s = None, None, 0.0
        try:
            with http_side.naming_errors(side.url):
                found = await self._ask(question, side, received, began_s)
        except HeadlongError as failure:
            ending, error = Ending.FAILED, str(failure)
        else:
            if isinstance(found, TimedAnswer):
                ending, answer = Ending.DONE, found
            elif found is None:
                ending, error = Ending.EMPTY, "The answer was empty."
            else:
                ending, error, wait_s = Ending.BUSY, "The server was busy.", found
        run = Run(mode, question, 0, answer, error)
        return RequestRecord(run, ending, began_s, tuple(received.times_s), wait_s)

    async def _ask(
        self,
        question: Question,
        side: http_side.HttpSide,
        received: http_side.AnswerStream,
        began_s: float,
    ) -> TimedAnswer | float | None:
        """Return the answer, None for an empty one, or how long a busy server asks to stay away."""
        path, body = side.make_request(question)
        async with self._http.stream("POST", f"{side.url}{path}", json=body) as response:
            if response.status_code in http_side.BUSY:
                return http_side.retry_after_s(response, 0)
            if response.status_code != httpx.codes.OK:
                await response.aread()
                raise http_side.refuse(side.url, response.status_code, response.text)
            with received.until_closed():
                async for data in response.aiter_bytes():
                    received.feed(data)
        if received.finish_reason is not None and not received.pieces:
            return None
        return side.make_answer(received, began_s, 0)


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """How heavy the load is."""

    value: float
    """Requests open at a time, or arriving per second."""
    is_open_loop: bool = False

    @property
    def name(self) -> str:
        """The level for people."""
        return f"{self.value:g} per second" if self.is_open_loop else f"{self.value:g} at a time"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to ask, how heavily, how long."""

    levels: Sequence[LoadLevel]
    modes: Sequence[str]
    """The first is the baseline."""
    prompts: Mapping[str, Sequence[BenchPrompt]]
    """By traffic class."""
    weights: Mapping[str, float]
    """How often each class is asked, against the others."""
    duration_s: float
    """Of each level, all its slices together."""
    max_tokens: int | None = None
    """None leaves it to each prompt."""
    seed: int = 0

    @property
    def num_pairs(self) -> int:
        """How often the modes take turns in each level."""
        return max(1, int(self.duration_s / len(self.modes) / SLICE_S))

    @property
    def slice_s(self) -> float:
        """How long one slice is."""
        return self.duration_s / self.num_pairs / len(self.modes)


@dataclass(frozen=True, slots=True)
class Slice:
    """One stretch of time with one mode, and everything that was asked in it."""

    level: LoadLevel
    pair: int
    mode: str
    seconds: float
    began_s: float
    asked: Sequence[RequestRecord]


@dataclass(slots=True)
class LoadLog:
    """What has happened so far."""

    slices: list[Slice] = field(default_factory=list)
    stopped: str | None = None


class Client(Protocol):
    """What sends the questions."""

    async def ask(self, question: Question, mode: str) -> RequestRecord:
        """Put one question and wait for the whole answer."""


async def run_load(
    client: Client, plan: LoadPlan, log: LoadLog, on_slice: Callable[[Slice], None]
) -> None:
    """Go through all levels; stops by itself when the server is gone."""
    await _warm_up(client, plan)
    for level, pair, mode in _list_turns(plan):
        await _SliceRun(client, plan, level, pair, mode).run(log)
        on_slice(log.slices[-1])
        if log.stopped:
            return


def _list_turns(plan: LoadPlan) -> Iterator[tuple[LoadLevel, int, str]]:
    for level in plan.levels:
        for pair in range(plan.num_pairs):
            # Off first, then auto first: a drift hits both the same.
            for mode in plan.modes if pair % 2 == 0 else plan.modes[::-1]:
                yield level, pair, mode


async def _warm_up(client: Client, plan: LoadPlan) -> None:
    """Let the server read every prompt once in every mode, so that none is the first to."""
    prompts = [prompt for own in plan.prompts.values() for prompt in own]
    for mode, prompt in product(plan.modes, prompts):
        asked = await client.ask(Question(prompt, prompt.temperature or 0.0, 1, 0, 0), mode)
        if asked.ending == Ending.FAILED:
            problem = f"Before the load began, {prompt.name} failed: {asked.run.error}"
            raise RequestError(problem, f"Mend that, or leave {prompt.task} out with --mix.")


def make_questions(plan: LoadPlan, pair: int) -> Iterator[Question]:
    """Yield questions without end, the same for every mode; classes are mixed by their weights."""
    random = Random(f"{plan.seed}/{pair}")
    names = list(plan.prompts)
    weights = [plan.weights[name] for name in names]
    turns = {name: count(pair) for name in names}
    for number in count():
        name = random.choices(names, weights)[0]
        prompts = plan.prompts[name]
        prompt = prompts[next(turns[name]) % len(prompts)]
        limit = plan.max_tokens or prompt.max_tokens or DEFAULT_MAX_TOKENS
        run = pair * 1_000_000 + number  # names the question, so that modes can be compared
        yield Question(prompt, prompt.temperature or 0.0, limit, run, plan.seed + run)


@dataclass(slots=True)
class _SliceRun:
    """The making of one slice."""

    client: Client
    plan: LoadPlan
    level: LoadLevel
    pair: int
    mode: str
    asked: list[RequestRecord] = field(default_factory=list)
    failures_in_a_row: int = 0
    num_open: int = 0
    ends_s: float = 0.0
    last_error: str = ""

    async def run(self, log: LoadLog) -> None:
        """Ask until time is up, then wait for what is open; what is known is logged in any case."""
        began_s = time.perf_counter()
        self.ends_s = began_s + self.plan.slice_s
        questions = make_questions(self.plan, self.pair)
        try:
            if self.level.is_open_loop:
                await self._ask_at_rate(questions)
            else:
                workers = range(int(self.level.value))
                await asyncio.gather(*(self._ask_in_turn(questions) for _ in workers))
        finally:
            seconds = min(time.perf_counter(), self.ends_s) - began_s
            log.slices.append(Slice(self.level, self.pair, self.mode, seconds, began_s, self.asked))
        if self._is_lost():
            log.stopped = f"the server no longer answers ({self.last_error})"

    async def _ask_in_turn(self, questions: Iterator[Question]) -> None:
        """Ask the next question whenever the one before is answered."""
        while time.perf_counter() < self.ends_s and not self._is_lost():
            asked = await self._ask(next(questions))
            if asked.ending == Ending.BUSY:
                left_s = self.ends_s - time.perf_counter()
                await asyncio.sleep(max(0.0, min(max(asked.wait_s, 0.05), left_s)))

    async def _ask_at_rate(self, questions: Iterator[Question]) -> None:
        """Ask at random moments, whether or not earlier questions are answered."""
        random = Random(f"{self.plan.seed}/{self.pair}/arrivals")
        next_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            while not self._is_lost():
                next_s += random.expovariate(self.level.value)
                if next_s >= self.ends_s:
                    break
                await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
                question = next(questions)
                if self.num_open < MAX_OPEN:
                    group.create_task(self._ask(question))
                else:
                    error = f"{MAX_OPEN} requests were open already."
                    run = Run(self.mode, question, 0, error=error)
                    self.asked.append(RequestRecord(run, Ending.FAILED, time.perf_counter()))

    async def _ask(self, question: Question) -> RequestRecord:
        self.num_open += 1
        try:
            asked = await self.client.ask(question, self.mode)
        finally:
            self.num_open -= 1
        self.asked.append(asked)
        is_failed = asked.ending == Ending.FAILED
        self.failures_in_a_row = self.failures_in_a_row + 1 if is_failed else 0
        self.last_error = (asked.run.error or "").rstrip(".") if is_failed else self.last_error
        return asked

    def _is_lost(self) -> bool:
        at_once = 1 if self.level.is_open_loop else int(self.level.value)
        return self.failures_in_a_row >= MAX_FAILURES + at_once
