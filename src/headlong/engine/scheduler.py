"""The scheduler: which requests run or wait, and how much of each prompt runs in the next step.

Requests begin in order of arrival, at most `max_running` at a time. Prompts take turns, a chunk
each. While others decode, the chunks of a step may take as long as two of their rounds, as
measured. Knows nothing of passes and caches.
"""

import time
from collections import deque
from dataclasses import dataclass, field

from headlong.engine.limits import EngineLimits
from headlong.engine.request import Running
from headlong.errors import BusyError

PREFILL_SHARE = 2.0
"""Time of the prompt chunks of a step, relative to a round of the requests that decode."""

MIN_CHUNK = 16
"""Fewest prompt rows of a step: smaller passes cost more time than they save others."""

SMOOTHING = 0.3
"""Weight of the newest measurement of a pace."""

MAX_RETRY_S = 60.0


@dataclass(slots=True)
class Pace:
    """How long something takes, as a moving average; None before it was measured."""

    seconds: float | None = None

    def observe(self, seconds: float) -> None:
        """Learn from one more measurement."""
        if self.seconds is None:
            self.seconds = seconds
        # One stall counts as twice the usual at most.
        self.seconds += SMOOTHING * (min(seconds, 2 * self.seconds) - self.seconds)


@dataclass(slots=True)
class Scheduler:
    """The queue of an engine."""

    limits: EngineLimits
    waiting: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    """In the order they began."""
    _row_pace: Pace = field(default_factory=Pace)
    _round_pace: Pace = field(default_factory=Pace)
    _finish_pace: Pace = field(default_factory=Pace)
    _last_finish_s: float | None = None
    _turn: int = 0

    @property
    def prefilling(self) -> list[Running]:
        """Requests whose prompt has not run yet, or not again after a preemption."""
        return [one for one in self.running if one.sequence.num_rows_left > 0]

    @property
    def decoding(self) -> list[Running]:
        """Requests that take part in the next round."""
        return [one for one in self.running if one.sequence.num_rows_left == 0]

    def enqueue(self, running: Running) -> None:
        """Let a new request wait, or refuse it."""
        most = self.limits.max_running + self.limits.max_waiting
        num_now = len(self.waiting) + len(self.running)
        if num_now >= most:
            raise BusyError(
                f"{num_now} requests run or wait; the limits are {self.limits.max_running} that "
                f"run and {self.limits.max_waiting} that wait.",
                f"Try again in {self.retry_after_s:.0f} s, or raise the limits.",
                self.retry_after_s,
            )
        self.waiting.append(running)

    @property
    def retry_after_s(self) -> float:
        """When the next request should end, by how often they did lately."""
        return min(max(1.0, self._finish_pace.seconds or 1.0), MAX_RETRY_S)

    def begin(self, running: Running) -> None:
        """Move a waiting request to the running ones."""
        self.waiting.remove(running)
        self.running.append(running)
        if self._last_finish_s is None:
            self._last_finish_s = time.monotonic()

    def preempt(self, running: Running) -> None:
        """Move a running request, whose caches were freed, back to the head of the queue."""
        self.running.remove(running)
        self.waiting.appendleft(running)

    def remove(self, running: Running) -> None:
        """Remove a request that has ended."""
        if running in self.waiting:
            self.waiting.remove(running)
            return
        self.running.remove(running)
        now_s = time.monotonic()
        if self._last_finish_s is not None:
            self._finish_pace.observe(now_s - self._last_finish_s)
        # Idle time says nothing about how long requests take.
        self._last_finish_s = now_s if self.running or self.waiting else None

    def next_chunks(self) -> list[tuple[Running, int]]:
        """Return which prompts run in the next step, and how many rows of each; they take turns."""
        reading = self.prefilling
        if not reading:
            return []
        self._turn += 1
        first = self._turn % len(reading)
        num_left = self._num_prompt_rows(len(reading) < len(self.running))
        quantum = max(MIN_CHUNK, num_left // len(reading))
        chunks: list[tuple[Running, int]] = []
        for one in reading[first:] + reading[:first]:
            num_rows = min(one.sequence.num_rows_left, quantum, num_left)
            if num_rows > 0:
                chunks.append((one, num_rows))
                num_left -= num_rows
        return chunks

    def observe_prefill(self, num_rows: int, seconds: float) -> None:
        """Learn the time of a prompt row."""
        self._row_pace.observe(seconds / num_rows)

    def observe_round(self, seconds: float) -> None:
        """Learn the time of a round."""
        self._round_pace.observe(seconds)

    def _num_prompt_rows(self, others_decode: bool) -> int:
        """Return how many rows of prompts may run in the next step."""
        most = self.limits.prefill_rows_per_step
        if not others_decode:
            return most
        row_s, round_s = self._row_pace.seconds, self._round_pace.seconds
        if row_s is None or round_s is None:
            return min(most, 2 * MIN_CHUNK)
        return min(most, max(MIN_CHUNK, int(PREFILL_SHARE * round_s / row_s)))
