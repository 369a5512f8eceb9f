"""The worker: one thread owns the engine; coroutines send it commands and receive chunks.

In:  commands through a queue: start these choices, end those.
Out: after a step, all new chunks of all answers in one call into the event loop. Quick steps share
     a call, since one costs tenths of a millisecond: right after a pass the processor's caches hold
     nothing of it.
With nothing to run the thread sleeps on its queue. A fault of the engine ends the requests it hit
and no others; one that ends the thread ends all at once. Knows nothing of HTTP.
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

from headlong.engine.client import EngineClient
from headlong.engine.limits import EngineSnapshot
from headlong.errors import EngineDownError, HeadlongError, StoppingError
from headlong.generation import Chunk
from headlong.server.answer_stream import Answer, ChoiceEnd, ChoiceRequest, ChoiceStream

SNAPSHOT_INTERVAL_S = 0.1
"""How old a snapshot may get while the engine is at work."""

HAND_OVER_S = 0.03
"""Tokens wait at most so long and a step for others to go with: thirty times a second is smooth to
the eye, and each time takes a third of a millisecond from the passes. First and last ones never
wait."""

_POLL_S = 0.02
"""How often a drain checks whether all answers are out."""

Command: TypeAlias = Callable[[], None]

_log = logging.getLogger("headlong.server.worker")


@dataclass(frozen=True, slots=True)
class _Delivery:
    """What one step brought for one choice."""

    answer: Answer
    stream: ChoiceStream
    chunks: list[Chunk]
    end: ChoiceEnd | None
    is_urgent: bool
    """Whether a client waits for just this: the first token, or the end."""


class EngineWorker:
    """Runs one engine in a thread of its own."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._commands: SimpleQueue[Command | None] = SimpleQueue()
        self._live: list[tuple[Answer, ChoiceStream]] = []  # the thread's own
        self._begun: set[ChoiceStream] = set()  # of these, the ones with a first token
        self._undelivered: list[_Delivery] = []
        self._handed_over_s = 0.0
        self._answers: set[Answer] = set()  # the event loop's own
        self._starting: set[asyncio.Future[Answer]] = set()  # likewise: answers not yet begun
        self._lost: EngineDownError | None = None  # likewise
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        self._snapshot = engine.snapshot()
        self._snapshot_s = time.monotonic()

    def start(self) -> None:
        """Start the thread; called in the event loop that answers requests."""
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
        if self._snapshot.problem:
            return EngineDownError(self._snapshot.problem, "Restart the server.")
        return None if self.is_alive and not self._is_closing else _stopping()

    @property
    def num_answers(self) -> int:
        """Answers that have not ended."""
        return len(self._answers)

    def snapshot(self) -> EngineSnapshot:
        """Return what the engine is doing; at work, what it did a tenth of a second ago."""
        return self._snapshot

    async def submit(self, choices: Sequence[ChoiceRequest]) -> Answer:
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
        self._starting.add(begun)
        begun.add_done_callback(self._starting.discard)
        self._send(partial(self._start_choices, choices, begun))
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
        self._send(self._cut_all)
        self._send(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        return num_cut

    def _send(self, command: Command | None) -> None:
        """Give the thread something to do, or the end with None, also while a step waits."""
        self._commands.put(command)
        self._engine.wake()

    # From here on everything runs in the engine's thread, unless it says otherwise.

    def _run(self) -> None:
        try:
            while self._run_commands():
                self._run_guarded(self._engine.step)
                self._deliver()
        except BaseException as error:  # whatever it is, clients must hear of it
            _log.critical("The engine's thread has ended. Restart the server.", exc_info=True)
            self._call_in_loop(partial(self._fail_all_answers, error))

    def _run_commands(self) -> bool:
        """Run what is in the queue, waiting for it when idle; False means stop."""
        while not self._live or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            self._run_guarded(command)
            if not self._live:
                self._take_snapshot()
        return True

    def _run_guarded(self, command: Command) -> None:
        """Run a command whose faults must not end the thread."""
        try:
            command()
        except Exception as error:
            _log.exception("The engine broke off.")
            # The engine ends the requests it knows to be hit; if there are none, all may be.
            if all(stream.tokens.finish_reason is None for _, stream in self._live):
                self._end_all(error)

    def _start_choices(
        self, choices: Sequence[ChoiceRequest], begun: asyncio.Future[Answer]
    ) -> None:
        streams: list[ChoiceStream] = []
        try:
            for choice in choices:
                streams.append(ChoiceStream(choice, self._engine.submit(choice.request)))
        except Exception as error:
            for stream in streams:
                self._engine.cancel(stream.tokens)
            self._call_in_loop(partial(_refuse, begun, error))
            return
        answer = Answer(streams, lambda it: self._send(partial(self._cancel, it)))
        self._live += [(answer, stream) for stream in streams]
        self._snapshot_s = 0.0  # out of date after the next step
        self._call_in_loop(partial(self._register, begun, answer))

    def _cancel(self, answer: Answer) -> None:
        for stream in answer.streams:
            self._engine.cancel(stream.tokens)
        self._deliver()

    def _cut_all(self) -> None:
        """End what is left when the server stops; its clients get an error, not a torn answer."""
        self._end_all(_stopping())
        self._deliver()

    def _end_all(self, error: Exception) -> None:
        for _, stream in self._live:
            self._engine.fail(stream.tokens, error)

    def _deliver(self) -> None:
        """Hand everything new over, with one call for all answers; after most steps, nothing."""
        now_s = time.monotonic()
        is_due = now_s - self._handed_over_s >= HAND_OVER_S
        new = [
            self._read(answer, stream)
            for answer, stream in self._live
            if (is_due and stream.tokens.num_ready) or self._cannot_wait(stream)
        ]
        ended = {delivery.stream for delivery in new if delivery.end is not None}
        if ended:
            self._live = [pair for pair in self._live if pair[1] not in ended]
            self._begun -= ended
        if not self._live or now_s - self._snapshot_s > SNAPSHOT_INTERVAL_S:
            self._take_snapshot()
        self._undelivered += new
        if self._undelivered and (is_due or any(delivery.is_urgent for delivery in new)):
            due, self._undelivered = self._undelivered, []
            self._handed_over_s = now_s
            self._call_in_loop(partial(self._hand_over, due))

    def _cannot_wait(self, stream: ChoiceStream) -> bool:
        """Tell whether a choice is read in this very step: it begins, ends, or may have to end."""
        tokens = stream.tokens
        if tokens.finish_reason is not None or not tokens.num_ready:
            return tokens.finish_reason is not None
        return stream not in self._begun or bool(tokens.request.stopping.stop)

    def _read(self, answer: Answer, stream: ChoiceStream) -> _Delivery:
        """Make text of a choice's new tokens; here, so that a stop string ends it at once."""
        tokens, chunks = stream.tokens, list[Chunk]()
        try:
            while tokens.num_ready:
                (emitted,) = tokens.take(1)
                ending = None if tokens.num_ready else tokens.finish_reason
                chunks.append(stream.choice.reader.read(emitted, ending))
                if chunks[-1].finish_reason is not None:
                    self._engine.cancel(tokens, chunks[-1].finish_reason)
        except Exception as error:
            _log.exception("The tokens of an answer could not be read.")
            self._engine.fail(tokens, error)
        reason, end = tokens.finish_reason, None
        if reason is not None:
            if chunks and tokens.error is None:  # a stop string in the last token comes first
                reason = chunks[-1].finish_reason or reason
            end = ChoiceEnd(reason, tokens.report(), tokens.error)
        is_first = bool(chunks) and stream not in self._begun
        if is_first:
            self._begun.add(stream)
        return _Delivery(answer, stream, chunks, end, is_urgent=is_first or end is not None)

    def _take_snapshot(self) -> None:
        self._snapshot = self._engine.snapshot()
        self._snapshot_s = time.monotonic()

    def _call_in_loop(self, callback: Command) -> None:
        """Run a callback in the event loop, unless that has closed."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    # From here on everything runs in the event loop.

    def _register(self, begun: asyncio.Future[Answer], answer: Answer) -> None:
        self._answers.add(answer)
        begun.set_result(answer)

    def _fail_all_answers(self, error: BaseException) -> None:
        """End everything that waits for the thread, which has ended, and take nothing in again."""
        self._lost = EngineDownError(
            f"The engine has ended with {type(error).__name__}.", "Restart the server."
        )
        for begun in list(self._starting):
            _refuse(begun, self._lost)
        for answer in self._answers:
            answer.fail(self._lost)
        self._answers.clear()

    def _hand_over(self, deliveries: Sequence[_Delivery]) -> None:
        for delivery in deliveries:
            delivery.stream.receive(delivery.chunks, delivery.end)
            delivery.answer.arrived.set()
            if delivery.end is not None and delivery.answer.is_over:
                self._answers.discard(delivery.answer)


def _stopping() -> StoppingError:
    return StoppingError("The server is shutting down.", "Ask another one, or later.")


def _refuse(begun: asyncio.Future[Answer], error: Exception) -> None:
    begun.set_exception(error)
    begun.exception()  # its caller may be gone, which is no reason for a warning


def _cancel_begun(begun: asyncio.Future[Answer]) -> None:
    if begun.exception() is None:
        begun.result().cancel()
