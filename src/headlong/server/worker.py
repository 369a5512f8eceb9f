"""The worker: one thread owns the engine; coroutines ask it and are told.

In:  commands through a queue: start these choices, end those.
Out: after a step, all new chunks of all answers in one call into the event loop; quick steps share
     a call and the making of text, since right after a pass both find nothing in the processor's
     caches and cost tenths of a millisecond.
With nothing to run the thread sleeps on its queue. A fault of the engine ends the requests it hit
and no others; one that ends the thread ends all, and nobody waits for it any more. Knows nothing of
HTTP.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias

from headlong.decode.recovery import as_engine_error
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineSnapshot
from headlong.engine.request import FinishReason, Running
from headlong.errors import EngineDownError, HeadlongError, StoppingError
from headlong.generation import Chunk
from headlong.server.answer_stream import Answer, Ask, ChoiceStream

SNAPSHOT_INTERVAL_S = 0.1
"""How old a snapshot may get while the engine is at work."""

HAND_OVER_S = 0.03
"""Tokens wait at most so long and a step for others to go with: thirty times a second is smooth to
the eye, and each time takes a third of a millisecond from the passes. First and last ones never
wait."""

_POLL_S = 0.02
"""How often a drain looks whether all answers are out."""

Command: TypeAlias = Callable[[], None]

_log = logging.getLogger("headlong.server.worker")


@dataclass(frozen=True, slots=True)
class _Parcel:
    """What one step brought for one choice."""

    answer: Answer
    stream: ChoiceStream
    chunks: list[Chunk]
    end: FinishReason | None

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for just this: the first token, or the end."""
        return self.end is not None or len(self.chunks) == self.stream.running.num_emitted


class EngineWorker:
    """Runs one engine in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._live: list[tuple[Answer, ChoiceStream]] = []  # the thread's own
        self._parcels: list[_Parcel] = []  # read, but not handed over yet
        self._handed_over_s = 0.0
        self._answers: set[Answer] = set()  # the event loop's own
        self._asking: set[asyncio.Future[Answer]] = set()  # likewise: answers not yet begun
        self._lost: EngineDownError | None = None  # likewise
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        self._snapshot = engine.snapshot()
        self._snapshot_s = time.monotonic()

    def start(self) -> None:
        """Begin to run; called in the event loop that will ask."""
        assert self._thread is None, "a worker starts once"
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="headlong-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._lost is None and self._thread is not None and self._thread.is_alive()

    @property
    def refusal(self) -> HeadlongError | None:
        """Why no new answers may be asked for; None when they may."""
        if self._lost is not None:
            return self._lost
        return None if self.is_alive and not self._is_closing else _stopping()

    @property
    def num_answers(self) -> int:
        """Answers that have not ended."""
        return len(self._answers)

    def snapshot(self) -> EngineSnapshot:
        """Return what the engine is doing; at work, what it did a tenth of a second ago."""
        return self._snapshot

    async def submit(self, asks: Sequence[Ask]) -> Answer:
        """Start all choices of an answer, or none.

        Raises:
            BusyError: The queue is full.
            RequestError: The engine cannot run such a request.
            StoppingError: The server is shutting down.
            EngineDownError: The engine's thread has ended.
        """
        refusal = self.refusal
        if refusal is not None:
            raise refusal
        begun: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asking.add(begun)
        begun.add_done_callback(self._asking.discard)
        self._commands.put(partial(self._begin, asks, begun))
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(_cancel_begun)  # the thread may have started it meanwhile
            raise

    async def drain(self, timeout_s: float) -> int:
        """Take no more answers in, let the running ones end, then stop the thread.

        Returns how many were cut because they took longer than `timeout_s`.
        """
        self._is_closing = True
        deadline = time.monotonic() + timeout_s
        while self._answers and self.is_alive and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        num_cut = len(self._answers)
        self._commands.put(self._cut_all)
        self._commands.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        return num_cut

    # From here on everything runs in the engine's thread, unless it says otherwise.

    def _run(self) -> None:
        try:
            while self._obey():
                self._attempt(self._engine.step)
                self._deliver()
        except BaseException as error:  # whatever it is, somebody must hear of it
            _log.critical("The engine's thread has ended. Restart the server.", exc_info=True)
            self._tell(partial(self._lose_all, error))

    def _obey(self) -> bool:
        """Do what was asked, waiting for it when there is nothing to run; False means stop."""
        while not self._live or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            self._attempt(command)
            if not self._live:
                self._take_snapshot()
        return True

    def _attempt(self, what: Command) -> None:
        """Do something that must not take the thread down with it."""
        try:
            what()
        except Exception as error:
            _log.exception("The engine broke off.")
            self._fail(error)

    def _begin(self, asks: Sequence[Ask], begun: asyncio.Future[Answer]) -> None:
        streams: list[ChoiceStream] = []
        try:
            for ask in asks:
                streams.append(ChoiceStream(ask, self._engine.submit(ask.request)))
        except Exception as error:
            for stream in streams:
                self._engine.cancel(stream.running)
            self._tell(partial(_refuse, begun, error))
            return
        answer = Answer(streams, self._ask_cancel)
        self._live += [(answer, stream) for stream in streams]
        self._snapshot_s = 0.0  # out of date after the next step
        self._tell(partial(self._accept, begun, answer))

    def _cancel(self, answer: Answer) -> None:
        for stream in answer.streams:
            self._engine.cancel(stream.running)
        self._deliver()

    def _cut_all(self) -> None:
        """End what is left when the server stops; its clients get an error, not a torn answer."""
        self._end_all(_stopping())
        self._deliver()

    def _fail(self, error: Exception) -> None:
        """Make sure that a broken step leaves nobody waiting: end those it hit, or else all."""
        hit = [stream for _, stream in self._live if stream.running.finish_reason is not None]
        if not hit:
            self._end_all(as_engine_error(error))
        for stream in hit:
            if stream.running.finish_reason is FinishReason.ERROR and stream.running.error is None:
                stream.running.error = as_engine_error(error)

    def _end_all(self, error: HeadlongError) -> None:
        for _, stream in self._live:
            self._engine.cancel(stream.running, FinishReason.ERROR)
            stream.running.error = error

    def _deliver(self) -> None:
        """Hand everything new over, with one call for all answers; after most steps, nothing."""
        now_s = time.monotonic()
        is_due = now_s - self._handed_over_s >= HAND_OVER_S
        parcels = [
            self._read(answer, stream)
            for answer, stream in self._live
            if (is_due and stream.running.outbox) or _cannot_wait(stream.running)
        ]
        if any(parcel.end is not None for parcel in parcels):
            ended = {id(parcel.stream) for parcel in parcels if parcel.end is not None}
            self._live = [pair for pair in self._live if id(pair[1]) not in ended]
        if not self._live or now_s - self._snapshot_s > SNAPSHOT_INTERVAL_S:
            self._take_snapshot()
        self._parcels += parcels
        if self._parcels and (is_due or any(parcel.is_urgent for parcel in parcels)):
            due, self._parcels = self._parcels, []
            self._handed_over_s = now_s
            self._tell(partial(self._hand_over, due))

    def _read(self, answer: Answer, stream: ChoiceStream) -> _Parcel:
        """Make text of a choice's new tokens; here, so that a stop string ends it at once."""
        running, chunks = stream.running, list[Chunk]()
        try:
            while running.outbox:
                emitted = running.outbox.popleft()
                ending = None if running.outbox else running.finish_reason
                chunks.append(stream.ask.reader.read(emitted, ending))
                if chunks[-1].finish_reason is not None:
                    self._engine.cancel(running, chunks[-1].finish_reason)
        except Exception as error:
            _log.exception("The tokens of an answer could not be read.")
            self._engine.cancel(running, FinishReason.ERROR)
            running.error = as_engine_error(error)
        end = chunks[-1].finish_reason if chunks and running.error is None else None
        return _Parcel(answer, stream, chunks, end or running.finish_reason)

    def _take_snapshot(self) -> None:
        self._snapshot = self._engine.snapshot()
        self._snapshot_s = time.monotonic()

    def _tell(self, news: Command) -> None:
        """Run `news` in the event loop; nobody is left to be told when that has closed."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(news)

    # From here on everything runs in the event loop.

    def _accept(self, begun: asyncio.Future[Answer], answer: Answer) -> None:
        self._answers.add(answer)
        begun.set_result(answer)

    def _lose_all(self, error: BaseException) -> None:
        """End whatever waits for a thread that is no more, and take nothing in again."""
        self._lost = EngineDownError(
            f"The engine has ended with {type(error).__name__}.", "Restart the server."
        )
        for begun in list(self._asking):
            _refuse(begun, self._lost)
        for answer in self._answers:
            answer.fail(self._lost)
        self._answers.clear()

    def _hand_over(self, parcels: Sequence[_Parcel]) -> None:
        for parcel in parcels:
            parcel.stream.receive(parcel.chunks, parcel.end)
            parcel.answer.arrived.set()
            if parcel.end is not None and parcel.answer.is_over:
                self._answers.discard(parcel.answer)

    def _ask_cancel(self, answer: Answer) -> None:
        self._commands.put(partial(self._cancel, answer))


def _stopping() -> StoppingError:
    return StoppingError("The server is shutting down.", "Ask another one, or later.")


def _cannot_wait(running: Running) -> bool:
    """Tell whether a choice is read in this very step: it begins, ends, or may find it must end."""
    if running.finish_reason is not None or not running.outbox:
        return running.finish_reason is not None
    return len(running.outbox) == running.num_emitted or bool(running.request.stopping.stop)


def _refuse(begun: asyncio.Future[Answer], error: Exception) -> None:
    begun.set_exception(error)
    begun.exception()  # its asker may be gone; that is no reason for a warning


def _cancel_begun(begun: asyncio.Future[Answer]) -> None:
    if begun.exception() is None:
        begun.result().cancel()
