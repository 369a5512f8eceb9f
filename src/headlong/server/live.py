"""What the server did in the last two minutes, second by second, and its last 200 requests.

In:  tokens as they leave, requests as they end, and once a second the engine's snapshot.
Out: `FinishedRequest`s, which never hold a prompt or an answer, and a plain dictionary for the
     page's charts. Used in the event loop only.
A round is read off its tokens: accepted drafts come first, the model's own token behind them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from headlong.config import MtpMode
from headlong.decode.stats import DecodeStats
from headlong.engine.limits import EngineSnapshot
from headlong.generation import Chunk

MAX_RECORDS = 200
"""Ended requests that are remembered."""

WINDOW_S = 120
"""Seconds that are kept."""

SPEEDUP_SPAN_S = 10
"""A request's speed-up is known at its end only; a point stands for those of so many seconds."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One finished request, without its text."""

    id: str
    created_s: float
    """When it came, in seconds since 1970."""
    route: str
    """The path it came to, like /v1/chat/completions."""
    mtp: MtpMode
    """The mode it asked for, or was given by its key or the server."""
    num_prompt_tokens: int
    num_completion_tokens: int
    finish_reason: str
    """stop, length, tool_calls, cancelled, error, timeout."""
    total_s: float
    num_cached_tokens: int = 0
    """Prompt tokens that came out of the prefix cache."""
    status: int = 200
    ttft_s: float | None = None
    """Seconds to the first token; None when there was none."""
    tokens_per_second: float = 0.0
    """Of the decoding phase."""
    is_stream: bool = False
    client: str | None = None
    """Name of the API key, where keys are in use."""
    report: dict[str, Any] = field(default_factory=dict)
    """The answer's `mtp` object."""
    stats: DecodeStats | None = field(default=None, repr=False)
    """The rounds' counters, for the metrics; not shown."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything that is shown, for JSON."""
        shown = {name: getattr(self, name) for name in self.__slots__ if name != "stats"}
        return {**shown, "report": dict(self.report)}


@dataclass(slots=True)
class _Second:
    """Counters of about one second, and the most that the engine had to do in it."""

    ended_s: float = 0.0
    length_s: float = 1.0
    num_tokens: int = 0
    num_rounds: int = 0
    accepted_at_depth: list[int] = field(default_factory=list)
    gained: float = 0.0
    """Sum of speed-up × tokens over requests that ended."""
    weight: int = 0
    """Their tokens."""
    num_rows: int = 0
    """Of the largest pass that was seen."""
    num_running: int = 0
    """At most; a short answer comes and goes within a second."""
    num_waiting: int = 0

    def observe(self, engine: EngineSnapshot) -> None:
        """Take one snapshot of the engine into account."""
        self.num_rows = max(self.num_rows, engine.last_rows)
        self.num_running = max(self.num_running, engine.num_running)
        self.num_waiting = max(self.num_waiting, engine.num_waiting)


class Live:
    """The recent past of one server."""

    def __init__(
        self,
        snapshot: Callable[[], EngineSnapshot],
        clock: Callable[[], float] = time.monotonic,
        max_records: int = MAX_RECORDS,
    ) -> None:
        """Begin with no records; `snapshot` returns the state of the engine."""
        self._finished: deque[FinishedRequest] = deque(maxlen=max_records)
        self._snapshot = snapshot
        self._clock = clock
        self._began_s = self._ticked_s = clock()
        self._seconds: deque[_Second] = deque(maxlen=WINDOW_S)
        self._current = _Second()
        self._num_tokens = 0
        self._num_requests = 0
        self._num_failed = 0

    def count_chunks(self, chunks: Sequence[Chunk], *, is_first: bool) -> None:
        """Count tokens of one choice as they leave; the very first belongs to no round."""
        second = self._current
        second.observe(self._snapshot())
        second.num_tokens += len(chunks)
        self._num_tokens += len(chunks)
        depth_before = 0
        for chunk in chunks[1:] if is_first else chunks:
            # A round begins with its first draft token, or is a single token of the model's own.
            second.num_rounds += chunk.depth == 1 or (chunk.depth == depth_before == 0)
            if chunk.depth:
                missing = chunk.depth - len(second.accepted_at_depth)
                second.accepted_at_depth += [0] * missing
                second.accepted_at_depth[chunk.depth - 1] += 1
            depth_before = chunk.depth

    def request_finished(self, record: FinishedRequest) -> None:
        """Count a request that ended, and what it gained if it was to gain anything."""
        self._finished.append(record)
        self._num_requests += 1
        self._num_failed += record.status >= 500
        speedup = record.report.get("measured_speedup")
        if speedup is not None and record.mtp != "off":
            self._current.gained += speedup * record.num_completion_tokens
            self._current.weight += record.num_completion_tokens

    def latest(self, num: int = MAX_RECORDS) -> list[FinishedRequest]:
        """Return up to `num` ended requests, newest first."""
        return list(reversed(self._finished))[:num]

    def tick(self) -> None:
        """Close the current second."""
        now_s, engine, second = self._clock(), self._snapshot(), self._current
        second.ended_s, second.length_s = now_s, max(1e-3, now_s - self._ticked_s)
        second.observe(replace(engine, last_rows=0))  # of the last pass, however long ago
        self._seconds.append(second)
        self._ticked_s, self._current = now_s, _Second()

    async def watch(self) -> None:
        """Tick once a second until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            self.tick()

    def report(self) -> dict[str, Any]:
        """Return the last two minutes, this moment, and totals since the start."""
        return {
            "uptime_s": round(self._clock() - self._began_s, 1),
            "window_s": WINDOW_S,
            "samples": self._samples(),
            "recent": self._recent(),
            "now": self._now(),
            "totals": self._totals(),
        }

    def _samples(self) -> list[dict[str, Any]]:
        now_s, seconds = self._clock(), list(self._seconds)
        return [
            {
                "age_s": round(now_s - second.ended_s, 1),
                "tokens_per_second": round(second.num_tokens / second.length_s, 1),
                "speedup": _speedup(seconds[max(0, i + 1 - SPEEDUP_SPAN_S) : i + 1]),
                "rows": second.num_rows,
                "running": second.num_running,
                "waiting": second.num_waiting,
            }
            for i, second in enumerate(seconds)
        ]

    def _recent(self) -> dict[str, Any]:
        seconds = [*self._seconds, self._current]
        rounds = sum(second.num_rounds for second in seconds)
        columns = zip_longest(*(second.accepted_at_depth for second in seconds), fillvalue=0)
        shares = [sum(column) / rounds for column in columns] if rounds else []
        return {
            "rounds": rounds,
            "acceptance_length": round(1 + sum(shares), 4),
            "acceptance_at_depth": [round(share, 4) for share in shares],
            "speedup": _speedup(seconds),
        }

    def _now(self) -> dict[str, Any]:
        engine = self._snapshot()
        last = self._seconds[-1] if self._seconds else _Second()
        return {
            "tokens_per_second": round(last.num_tokens / last.length_s, 1),
            "rows": last.num_rows,
            "running": engine.num_running,
            "waiting": engine.num_waiting,
            "prefilling": engine.num_prefilling,
            "kv_bytes": engine.kv_bytes,
            "kv_limit_bytes": engine.kv_limit_bytes,
        }

    def _totals(self) -> dict[str, Any]:
        engine = self._snapshot()
        return {
            "requests": self._num_requests,
            "failed": self._num_failed,
            "tokens": self._num_tokens,
            "prefix_hit_tokens": engine.prefix_hit_tokens,
            "prefix_lookup_tokens": engine.prefix_lookup_tokens,
            "preemptions": engine.num_preemptions,
        }


def _speedup(seconds: Sequence[_Second]) -> float | None:
    """Return the speed-up of requests that ended in these seconds, weighed by their tokens."""
    weight = sum(second.weight for second in seconds)
    return round(sum(second.gained for second in seconds) / weight, 4) if weight else None
