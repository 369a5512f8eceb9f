"""Stored responses, to continue from: in memory, bounded, each for its own client.

In:  finished responses with the conversation they belong to. Out: the same by id, until newer ones
     take their place or the server ends. One thread uses a store: the event loop's.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 2**20
"""Of all kept conversations, as JSON."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """One response."""

    client: str | None
    """The client's key; other clients cannot see the response."""
    response: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    """The conversation, this answer included, instructions left out."""
    num_bytes: int


@dataclass(slots=True)
class ResponseStore:
    """The newest responses."""

    max_responses: int = MAX_RESPONSES
    max_bytes: int = MAX_BYTES
    _kept: OrderedDict[str, KeptResponse] = field(default_factory=OrderedDict)
    _num_bytes: int = 0

    def keep(self, response_id: str, kept: KeptResponse) -> None:
        """Keep a response; the oldest ones give way."""
        self._kept[response_id] = kept
        self._num_bytes += kept.num_bytes
        while len(self._kept) > self.max_responses or self._num_bytes > self.max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._num_bytes -= dropped.num_bytes

    def find(self, response_id: str, client: str | None) -> KeptResponse | None:
        """Return a client's response, if it is still there."""
        kept = self._kept.get(response_id)
        return kept if kept is not None and kept.client == client else None

    def forget(self, response_id: str, client: str | None) -> bool:
        """Drop a client's response; return whether it existed."""
        if self.find(response_id, client) is None:
            return False
        self._num_bytes -= self._kept.pop(response_id).num_bytes
        return True
