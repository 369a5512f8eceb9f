"""One answer on its way from the engine's thread to a coroutine: chunks, round by round.

In:  chunks that the worker hands over in the event loop's thread.
Out: lists of chunks for the response; all that have come since it last asked.
A slow reader gets more at a time. What waits for it is bounded by its own `max_tokens` and ends
with its request's timeout; other requests do not wait for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headlong.decode.request import Request
from headlong.engine.client import TokenStream
from headlong.engine.request import FinishReason, RequestReport
from headlong.errors import HeadlongError
from headlong.generation import AnswerReader, Chunk


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """One choice to compute: a request, and what makes text of its tokens."""

    request: Request
    reader: AnswerReader


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How one choice ended, and what it took."""

    reason: FinishReason
    report: RequestReport
    error: HeadlongError | None = None


@dataclass(slots=True, eq=False)
class ChoiceStream:
    """One choice of an answer in the making."""

    choice: ChoiceRequest
    tokens: TokenStream
    """The engine's side: only its own thread may use it before the end has come."""
    end: ChoiceEnd | None = None
    """Set when the last chunk has come."""
    _ready: list[Chunk] = field(default_factory=list)

    def receive(self, chunks: Sequence[Chunk], end: ChoiceEnd | None) -> None:
        """Take in what one step brought; called in the event loop."""
        self._ready.extend(chunks)
        self.end = self.end or end

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
    def reports(self) -> list[RequestReport]:
        """What each choice took; only of an answer that has ended."""
        return [stream.end.report for stream in self.streams if stream.end is not None]

    @property
    def is_over(self) -> bool:
        """Whether every choice has ended."""
        return all(stream.end is not None for stream in self.streams)

    @property
    def was_cancelled(self) -> bool:
        """Whether it ended because it was not wanted any more."""
        ends = [stream.end for stream in self.streams]
        return any(end is not None and end.reason is FinishReason.CANCELLED for end in ends)

    @property
    def error(self) -> HeadlongError | None:
        """Why a choice failed, and with it the answer; None when none has."""
        errors = [stream.end.error for stream in self.streams if stream.end is not None]
        return next((error for error in errors if error is not None), None)

    async def next_arrival(self) -> Arrival:
        """Wait until something has come and return it; not to be called after the last one.

        Raises:
            HeadlongError: A choice failed, and with it the answer.
        """
        await self.arrived.wait()
        self.arrived.clear()
        if (error := self.error) is not None:
            raise error
        return Arrival([stream.take() for stream in self.streams], self.is_over)

    async def ended(self) -> None:
        """Wait until every choice has ended."""
        while not self.is_over:
            await self.arrived.wait()
            self.arrived.clear()

    def fail(self, error: HeadlongError) -> None:
        """End all choices that have not ended: the engine's thread is no more."""
        for stream in self.streams:
            stream.receive((), ChoiceEnd(FinishReason.ERROR, stream.tokens.report(), error))
        self.arrived.set()

    def cancel(self) -> None:
        """End all choices within a round; does nothing to those that have ended."""
        if not self.is_over:
            self._cancel(self)
