"""The scheduler: which requests run or wait, and how much of each prompt runs in the next step.

Requests begin in order of arrival, at most `max_running` at a time. Prompts take turns, a chunk
each. While others decode, the chunks of a step may take as long as two of their rounds, as
measured. Knows nothing of passes and caches.
"""

from collections import deque
from dataclasses import dataclass, field

from headlong.engine.limits import EngineLimits, QueueLimit
from headlong.engine.pace import Pace
from headlong.engine.request import Running

PREFILL_SHARE = 2.0
"""Time of the prompt chunks of a step, relative to a round of the requests that decode."""

MIN_CHUNK = 16
"""Fewest prompt rows of a step: smaller passes cost more time than they save others."""


@dataclass(slots=True)
class Scheduler:
    """The queue of an engine."""

    limits: EngineLimits
    waiting: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    """In the order they began."""
    _row_pace: Pace = field(default_factory=Pace)
    _round_pace: Pace = field(default_factory=Pace)
    _turn: int = 0
    _queue_limit: QueueLimit = field(init=False)

    def __post_init__(self) -> None:
        self._queue_limit = QueueLimit(self.limits)

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
        self._queue_limit.check(len(self.waiting) + len(self.running))
        self.waiting.append(running)

    def begin(self, running: Running) -> None:
        """Move a waiting request to the running ones."""
        self.waiting.remove(running)
        self.running.append(running)
        self._queue_limit.observe_begin()

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
        self._queue_limit.observe_end(len(self.running) + len(self.waiting))

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
