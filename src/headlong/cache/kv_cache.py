"""The KV cache of one sequence: append, commit, truncate, copy.

A pass *appends* entries for all its rows; they are pending. After acceptance the sequence
*commits* the leading ones that stand and the rest are gone. `truncate` also takes back committed
entries (a head's provisional drafts, a shorter shared prefix), `copy` gives another sequence the
entries of a common beginning. How keys and values are stored is the backend's business; this file
only counts.
"""

from collections.abc import Callable, Sequence

from headlong.ops.op_set import KVLayer

GROWTH = 64
"""Room is made in steps of this many positions or a quarter of what there is; growing copies."""


class KVCache:
    """Keys and values of one sequence, one `KVLayer` per layer."""

    def __init__(self, layers: Sequence[KVLayer]) -> None:
        self.layers = tuple(layers)
        self.length = 0
        """Committed positions."""
        self.num_pending = 0
        """Positions appended behind them by passes that are not yet judged."""
        self.max_length: int | None = None
        """Positions that will never be exceeded, if known: no room is made beyond them."""
        self._capacity = 0
        self._bytes_per_position = sum(layer.bytes_per_position for layer in self.layers)

    @property
    def num_bytes(self) -> int:
        """Bytes the cache takes now."""
        return self._capacity * self._bytes_per_position

    def bytes_for(self, length: int) -> int:
        """Return the bytes it will take once it holds `length` positions, pending ones included."""
        return self._capacity_for(length) * self._bytes_per_position

    def append(self, num_rows: int) -> int:
        """Make room for `num_rows` pending entries; return the position of the first."""
        first_position = self.length + self.num_pending
        self.reserve(first_position + num_rows)
        self.num_pending += num_rows
        return first_position

    def reserve(self, length: int) -> None:
        """Make room for `length` positions at once, where it is known that they will come."""
        capacity = self._capacity_for(length)
        if capacity > self._capacity:
            if self.layers:
                self.layers[0].reserve(capacity, self.layers[1:])
            self._capacity = capacity

    def commit(self, num_rows: int) -> None:
        """Keep the first `num_rows` pending entries, drop the other pending ones."""
        assert 0 <= num_rows <= self.num_pending, (num_rows, self.num_pending)
        self.length += num_rows
        self.num_pending = 0

    def truncate(self, length: int) -> None:
        """Drop every entry at and behind position `length`, pending ones included."""
        assert 0 <= length <= self.length, (length, self.length)
        self.length = length
        self.num_pending = 0

    def copy(self, length: int, make_empty: "Callable[[], KVCache]", room: int = 0) -> "KVCache":
        """Return a cache of its own with the first `length` committed entries of this one.

        It has room for `room` positions, where it is known that so many will come.
        """
        assert 0 <= length <= self.length, (length, self.length)
        copied = make_empty()
        copied.reserve(max(length, room))
        for layer, original in zip(copied.layers, self.layers, strict=True):
            layer.copy_from(original, length)
        copied.length = length
        return copied

    def _capacity_for(self, length: int) -> int:
        if length <= self._capacity:
            return self._capacity
        grown = self._capacity + self._capacity // 4
        if self.max_length is not None:
            grown = min(grown, self.max_length)
        return -(-max(length, grown) // GROWTH) * GROWTH
