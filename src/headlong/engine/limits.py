"""What an engine may hold at most, and what it holds now."""

from dataclasses import dataclass

from headlong.errors import RequestError


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


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value!r}.", f"It must be {allowed}.")
