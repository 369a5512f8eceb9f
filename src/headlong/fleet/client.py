"""The fleet's engine client: requests run on engines in other processes, here or elsewhere.

In:  requests of token ids, from the one thread that owns the client.
Out: their streams. One task for each request, in an event loop of its own, talks to replicas and
     puts what comes into a queue; `step` waits for the queue and moves it into the streams. So no
     token can get into another answer, and none comes twice or out of order.
"""

import asyncio
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple

from headlong.decode.recovery import as_engine_error
from headlong.decode.request import Request, check_prompt
from headlong.engine.client import TokenStream
from headlong.engine.limits import EngineLimits, EngineSnapshot, QueueLimit
from headlong.engine.request import FinishReason
from headlong.errors import HeadlongError
from headlong.fleet.dialect import Delta
from headlong.fleet.dispatch import Dispatcher
from headlong.fleet.replica import Replica
from headlong.fleet.routing import Route
from headlong.fleet.stream import FleetStream
from headlong.text.tokenizer import Tokenizer


class _News(NamedTuple):
    """What a task tells of its request."""

    stream: FleetStream
    what: Route | Delta | HeadlongError
    at_s: float


@dataclass(frozen=True, slots=True)
class FleetModel:
    """What the front knows of the model that all replicas serve."""

    context_length: int
    vocab_size: int
    tokenizer: Tokenizer


class FleetEngine:
    """Runs requests on the replicas of one fleet."""

    def __init__(
        self,
        model: FleetModel,
        dispatcher: Dispatcher,
        limits: EngineLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Run requests by `dispatcher` in `loop`, which runs in a thread of its own."""
        self.limits = limits
        self._model = model
        self._dispatcher = dispatcher
        self._loop = loop
        self._places = asyncio.Semaphore(limits.max_running)
        self._news: SimpleQueue[_News | None] = SimpleQueue()
        self._tasks: dict[FleetStream, asyncio.Task[None]] = {}  # the loop's own
        self._live: set[FleetStream] = set()  # from here on: the owner's
        self._num_finished = 0
        self._num_failed = 0
        self._queue_limit = QueueLimit(limits)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Who computes."""
        return tuple(self._dispatcher.router.replicas)

    @property
    def context_length(self) -> int:
        """Tokens, prompt and answer, that the model can attend to on some replica."""
        lengths = [one.max_tokens or self._model.context_length for one in self.replicas]
        return min(self._model.context_length, max(lengths))

    @property
    def vocab_size(self) -> int:
        """Token ids go from 0 to one less."""
        return self._model.vocab_size

    @property
    def max_sequence_tokens(self) -> int:
        """The same as the context: memory is the replicas' business."""
        return self.context_length

    @property
    def backend(self) -> str:
        """What computes, in words for people."""
        names = sorted({one.dialect.name for one in self.replicas})
        num = len(self.replicas)
        return f"{' and '.join(names)}, {num} {'replica' if num == 1 else 'replicas'}"

    @property
    def num_running(self) -> int:
        """Requests that some replica has."""
        return sum(stream.route is not None for stream in self._live)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place, or for a replica."""
        return len(self._live) - self.num_running

    def submit(self, request: Request) -> FleetStream:
        """Take a request in; its tokens come with later steps.

        Raises:
            RequestError: No replica could ever run it.
            BusyError: Too many others wait; `retry_after_s` says when there should be room.
        """
        check_prompt(request.prompt_ids, self.context_length, self.vocab_size)
        self._dispatcher.router.check(request)
        self._queue_limit.check(len(self._live))
        stream = FleetStream(request)
        self._queue_limit.observe_begin()
        self._live.add(stream)
        self._loop.call_soon_threadsafe(self._launch, stream)
        return stream

    def step(self) -> None:
        """Wait for news of any request, then take all that has come."""
        news = self._news.get()
        while True:
            if news is not None and news.stream in self._live:
                self._take(news)
            try:
                news = self._news.get_nowait()
            except Empty:
                return

    def wake(self) -> None:
        """Make a `step` that waits return now."""
        self._news.put(None)

    def cancel(self, stream: TokenStream, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request now; its connection is closed, which ends it on the replica too."""
        assert isinstance(stream, FleetStream), "a stream that this engine has given out"
        stream.num_arrived -= len(stream.ready)
        stream.ready.clear()
        self._finish(stream, reason)

    def fail(self, stream: TokenStream, error: Exception) -> None:
        """End a request with an error; others go on."""
        assert isinstance(stream, FleetStream), "a stream that this engine has given out"
        if stream.finish_reason is None:
            stream.error = as_engine_error(error)
        self._finish(stream, FinishReason.ERROR)

    def snapshot(self) -> EngineSnapshot:
        """Return what the fleet is doing now; of caches only their owners know."""
        return EngineSnapshot(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_prefilling=sum(
                stream.route is not None and not stream.num_arrived for stream in self._live
            ),
            last_rows=0,
            kv_bytes=0,
            kv_limit_bytes=None,
            prefix_bytes=0,
            prefix_entries=0,
            prefix_hit_tokens=0,
            prefix_lookup_tokens=0,
            num_preemptions=0,
            num_finished=self._num_finished,
            num_failed=self._num_failed,
        )

    def clear_prefixes(self) -> None:
        """Do nothing: what replicas keep is theirs."""

    def _take(self, news: _News) -> None:
        stream = news.stream
        match news.what:
            case Route():
                stream.begin(news.what, news.at_s)
            case Delta():
                stream.read(news.what, news.at_s)
                if stream.finish_reason is not None:
                    self._leave(stream)
            case HeadlongError():
                self.fail(stream, news.what)

    def _finish(self, stream: FleetStream, reason: FinishReason) -> None:
        if stream.finish_reason is not None:
            return
        stream.finish_reason = reason
        self._leave(stream)
        self._loop.call_soon_threadsafe(self._abandon, stream)

    def _leave(self, stream: FleetStream) -> None:
        self._live.remove(stream)
        self._queue_limit.observe_end(len(self._live))
        self._num_finished += 1
        self._num_failed += stream.finish_reason is FinishReason.ERROR

    # From here on everything runs in the loop.

    def _launch(self, stream: FleetStream) -> None:
        task = self._loop.create_task(self._run(stream))
        self._tasks[stream] = task
        task.add_done_callback(lambda _: self._tasks.pop(stream))

    def _abandon(self, stream: FleetStream) -> None:
        task = self._tasks.get(stream)
        if task is not None:
            task.cancel()

    async def _run(self, stream: FleetStream) -> None:
        def tell(what: Route | Delta | HeadlongError) -> None:
            self._news.put(_News(stream, what, time.perf_counter()))

        try:
            async with self._places:
                await self._dispatcher.run(stream.request, tell)
        except Exception as error:
            tell(as_engine_error(error))
