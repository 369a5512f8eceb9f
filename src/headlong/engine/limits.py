"""What an engine may hold at most, what it holds now, and who finds no room."""

import time
from dataclasses import dataclass, field

from headlong.engine.pace import Pace
from headlong.errors import BusyError, RequestError

MAX_RETRY_S = 60.0
"""The longest that a refused request is told to wait."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of an engine; a request beyond them waits or is refused."""

    max_running: int = 32
    """Requests in prefill or decoding at the same time."""
    max_waiting: int = 256
    """Requests that may wait; further ones are refused with `BusyError`."""
    kv_bytes: int | None = None
    """Bytes for the caches of backbone and drafter, kept prefixes included; None sets no bound."""
    prefix_bytes: int = 256 << 20
    """Of these, bytes for prefixes of ended requests."""
    rows_per_step: int = 64
    """Rows of one verify pass: the newest tokens of all streams and their drafts."""
    prefill_rows_per_step: int = 256
    """Prompt tokens of one step while no request decodes; fewer while one does."""
    honour_k: bool = False
    """Use a fixed K exactly also beside other requests, which its rows slow down; otherwise K is an
    upper bound there."""

    def __post_init__(self) -> None:
        for name in ("max_running", "rows_per_step", "prefill_rows_per_step"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("max_waiting", "prefix_bytes"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        has_room = self.kv_bytes is None or self.kv_bytes >= 1
        _require(has_room, "kv_bytes", self.kv_bytes, "1 or more, or None for no bound")


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The state of an engine at one moment."""

    num_running: int
    """Requests that read their prompt or decode."""
    num_waiting: int
    """Requests that have not begun, or were preempted."""
    num_prefilling: int
    """Of the running ones, those that still read their prompt."""
    last_rows: int
    """Rows of the last verify pass."""
    kv_bytes: int
    """Bytes of all caches: running requests, the drafter's memory, kept prefixes."""
    kv_limit_bytes: int | None
    prefix_bytes: int
    """Of these, kept for requests that begin the same way."""
    prefix_entries: int
    prefix_hit_tokens: int
    """Prompt tokens found in kept prefixes since the engine began."""
    prefix_lookup_tokens: int
    """Prompt tokens that were looked for."""
    num_preemptions: int
    """Times a request was set back because memory ran short."""
    num_finished: int
    """Requests that have ended, for whatever reason."""
    num_failed: int
    """Of these, ended by a fault of the engine."""
    problem: str | None = None
    """Why it will never run a request again, as its device is lost; None while it may."""


@dataclass(slots=True)
class QueueLimit:
    """Refuses what goes beyond the limits; learns how often requests end."""

    limits: EngineLimits
    _pace: Pace = field(default_factory=Pace)
    _last_end_s: float | None = None

    def check(self, num_now: int) -> None:
        """Refuse one more request where so many run or wait already, if that is too many."""
        limits = self.limits
        if num_now >= limits.max_running + limits.max_waiting:
            raise BusyError(
                f"{num_now} requests run or wait; the limits are {limits.max_running} that "
                f"run and {limits.max_waiting} that wait.",
                f"Try again in {self.retry_after_s:.0f} s, or raise the limits.",
                self.retry_after_s,
            )

    @property
    def retry_after_s(self) -> float:
        """When the next request should end, by how often they did lately."""
        return min(max(1.0, self._pace.seconds or 1.0), MAX_RETRY_S)

    def observe_begin(self) -> None:
        """Note that a request begins to run."""
        if self._last_end_s is None:
            self._last_end_s = time.monotonic()

    def observe_end(self, num_left: int) -> None:
        """Note that a request has ended, and how many there still are."""
        now_s = time.monotonic()
        if self._last_end_s is not None:
            self._pace.observe(now_s - self._last_end_s)
        # Idle time says nothing about how long requests take.
        self._last_end_s = now_s if num_left else None


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value!r}.", f"It must be {allowed}.")
