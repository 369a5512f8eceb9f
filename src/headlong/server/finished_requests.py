"""What is remembered of a finished request, and the last 200 of them.

In:  numbers and names a route has at the end of a request. Never a prompt, never an answer.
Out: `FinishedRequest`s for metrics, the log line and the page's list of recent requests.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from headlong.config import MtpMode
from headlong.decode.stats import DecodeStats

MAX_RECORDS = 200


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


class FinishedRequests:
    """The last finished requests, newest first when read."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._records: deque[FinishedRequest] = deque(maxlen=max_records)

    def add(self, record: FinishedRequest) -> None:
        """Remember one more; the oldest is forgotten when there are too many."""
        self._records.append(record)

    def latest(self, num: int = MAX_RECORDS) -> list[FinishedRequest]:
        """Return up to `num` records, newest first."""
        return [record for _, record in zip(range(num), reversed(self._records), strict=False)]
