"""One answer on its way from the engine's thread to a coroutine: chunks, round by round.

In:  parcels that the worker hands over in the event loop's thread.
Out: lists of chunks for whoever writes the answer; all that has come since it last asked.
A reader that falls behind gets more at a time. What waits for it is bounded by its own `max_tokens`
and ends with its request's timeout; nobody else waits for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headlong.decode.request import Request
from headlong.engine.request import FinishReason, Running
from headlong.errors import HeadlongError
from headlong.generation import AnswerReader, Chunk


@dataclass(frozen=True, slots=True)
class Ask:
    """One choice that is asked for: a request, and who makes text of its tokens."""

    request: Request
    reader: AnswerReader


@dataclass(slots=True, eq=False)
class ChoiceStream:
    """One choice of an answer in the making."""

    ask: Ask
    running: Running
    finish_reason: FinishReason | None = None
    """Set when the last chunk has come; this one the event loop reads, not the engine's own."""
    error: HeadlongError | None = None
    _ready: list[Chunk] = field(default_factory=list)

    def receive(self, chunks: Sequence[Chunk], end: FinishReason | None) -> None:
        """Take in what one step brought; called in the event loop."""
        self._ready.extend(chunks)
        if end is not None:
            self.finish_reason = end
            self.error = self.running.error

    def take(self) -> list[Chunk]:
        """Return the chunks that have come since the last call."""
        taken, self._ready = self._ready, []
        return taken


@dataclass(frozen=True, slots=True)
class Arrival:
    """What has come for an answer since it was last asked."""

    chunks: list[list[Chunk]]
    """Choice by choice; maybe nothing for some."""
    is_last: bool
    """Whether all choices have ended, so that nothing more will come."""


class Answer:
    """All choices of one answer; they run side by side in the engine."""

    def __init__(self, streams: Sequence[ChoiceStream], cancel: Callable[["Answer"], None]) -> None:
        """Join streams that the worker has started; `cancel` asks it to end them."""
        self.streams = streams
        self.arrived = asyncio.Event()
        self._cancel = cancel

    @property
    def runnings(self) -> list[Running]:
        """The engine's side of each choice: only its own thread may touch one that still runs."""
        return [stream.running for stream in self.streams]

    @property
    def is_over(self) -> bool:
        """Whether every choice has ended."""
        return all(stream.finish_reason is not None for stream in self.streams)

    @property
    def was_cancelled(self) -> bool:
        """Whether it ended because nobody wanted it any more."""
        return any(one.finish_reason is FinishReason.CANCELLED for one in self.streams)

    async def next_arrival(self) -> Arrival:
        """Wait until something has come and return it; not to be called after the last one.

        Raises:
            HeadlongError: A choice failed, and with it the answer.
        """
        await self.arrived.wait()
        self.arrived.clear()
        for stream in self.streams:
            if stream.error is not None:
                raise stream.error
        return Arrival([stream.take() for stream in self.streams], self.is_over)

    async def ended(self) -> None:
        """Wait until every choice has ended; from then on the engine leaves them alone."""
        while not self.is_over:
            await self.arrived.wait()
            self.arrived.clear()

    def fail(self, error: HeadlongError) -> None:
        """End all choices that have not ended: nothing more will come for them."""
        for stream in self.streams:
            if stream.finish_reason is None:
                stream.finish_reason, stream.error = FinishReason.ERROR, error
        self.arrived.set()

    def cancel(self) -> None:
        """End all choices within a round; does nothing to those that have ended."""
        if not self.is_over:
            self._cancel(self)
