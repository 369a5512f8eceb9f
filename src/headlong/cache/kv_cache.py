"""The KV cache of one sequence: append, commit, truncate.

A pass *appends* entries for all its rows; they are pending. After acceptance the sequence
*commits* the leading ones that stand and the rest are gone. `truncate` also takes back committed
entries (a head's provisional drafts, a shorter shared prefix). How keys and values are stored is
the backend's business; this file only counts.
"""

from collections.abc import Sequence

from headlong.ops.op_set import KVLayer

GROWTH = 256
"""Room is made in steps of this many positions, so that long answers do not copy at every token."""


class KVCache:
    """Keys and values of one sequence, one `KVLayer` per layer."""

    def __init__(self, layers: Sequence[KVLayer]) -> None:
        self.layers = tuple(layers)
        self.length = 0
        """Committed positions."""
        self.num_pending = 0
        """Positions appended behind them by passes that are not yet judged."""
        self._capacity = 0

    @property
    def num_bytes(self) -> int:
        """Bytes the cache takes now."""
        return sum(layer.num_bytes for layer in self.layers)

    def append(self, num_rows: int) -> int:
        """Make room for `num_rows` pending entries; return the position of the first."""
        first_position = self.length + self.num_pending
        needed = first_position + num_rows
        if needed > self._capacity:
            self._capacity = -(-max(needed, self._capacity * 3 // 2) // GROWTH) * GROWTH
            for layer in self.layers:
                layer.reserve(self._capacity)
        self.num_pending += num_rows
        return first_position

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
