"""The sequence state: the states of all layers of one sequence, updated together.

A pass *appends* rows, which are then pending. After acceptance the sequence *commits* the accepted
ones and drops the others. `rollback` drops all pending rows; committed rows are never taken back.
`fork` gives another sequence its own copy of the first rows; `fork_in_place` does so without a copy
if the first sequence has ended. Keys and values can be forked at any length, a recurrent state only
at the committed length and at its snapshots. This file has the counts; the backend's layer states
have the data.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from headlong.ops.blocks import Layer, SharedAttention
from headlong.ops.layer_state import LayerState, has_positions, is_recurrent
from headlong.ops.op_set import Ops

GROWTH = 64
"""Capacity grows by this many positions or by a quarter; growing means copying."""

MAX_SNAPSHOTS = 3
"""Most earlier lengths at which a sequence with recurrent layers can be forked."""

SNAPSHOT_STEP = 64
"""One snapshot is at the last multiple of this in a prompt, for prompts with another end."""


class SequenceState:
    """The layer states of one sequence, one per layer, and the counts they share.

    A layer without a mixer has None. A layer that reads the keys and values of an earlier one has
    that layer's state, which counts once.
    """

    def __init__(self, layers: Sequence[LayerState | None]) -> None:
        self.layers = tuple(layers)
        self.length = 0
        """Committed rows."""
        self.num_pending = 0
        """Rows after them that were appended and neither committed nor rolled back yet."""
        self.max_length: int | None = None
        """An upper bound of its rows, if known: growth does not reserve more."""
        self._capacity = 0
        own = {id(layer): layer for layer in self.layers}.values()
        self._kv_layers = [layer for layer in own if has_positions(layer)]
        self._recurrent = [layer for layer in self.layers if is_recurrent(layer)]
        self._bytes_per_position = sum(layer.bytes_per_position for layer in self._kv_layers)
        self._fixed_bytes = sum(layer.num_bytes for layer in self._recurrent) * (1 + MAX_SNAPSHOTS)
        self._planned_snapshots: list[int] = []
        self._snapshots: list[int] = []
        self._pending_snapshots: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the state now, including snapshots it may take."""
        return self._capacity * self._bytes_per_position + self._fixed_bytes

    def bytes_for(self, length: int) -> int:
        """Return its bytes with `length` rows, pending ones included."""
        return self._capacity_for(length) * self._bytes_per_position + self._fixed_bytes

    def append(self, num_rows: int, *, all_or_none: bool = False) -> int:
        """Add `num_rows` pending rows; return the position of the first.

        With `all_or_none` they will be committed or rolled back together, so a recurrent layer
        need not keep states between them.
        """
        first_position = self.length + self.num_pending
        self.reserve(first_position + num_rows)
        if self._recurrent:
            self._append_recurrent(first_position, num_rows, all_or_none)
        self.num_pending += num_rows
        return first_position

    def reserve(self, length: int) -> None:
        """Make room for `length` rows at once, where it is known that they will come."""
        capacity = self._capacity_for(length)
        if capacity > self._capacity:
            if self._kv_layers:
                self._kv_layers[0].reserve(capacity, self._kv_layers[1:])
            self._capacity = capacity

    def commit(self, num_rows: int) -> None:
        """Keep the first `num_rows` pending rows, drop the other pending ones."""
        assert 0 <= num_rows <= self.num_pending, (num_rows, self.num_pending)
        for state in self._recurrent:
            state.commit(num_rows)
        self._settle_snapshots(is_committed=num_rows > 0)
        self.length += num_rows
        self.num_pending = 0

    def rollback(self) -> None:
        """Drop all pending rows."""
        for state in self._recurrent:
            state.rollback()
        self._settle_snapshots(is_committed=False)
        self.num_pending = 0

    @property
    def is_recurrent(self) -> bool:
        """Whether it can be forked at a few lengths only."""
        return bool(self._recurrent)

    def plan_snapshots(self, num_prompt: int, num_common: int) -> None:
        """Choose lengths of a prompt that others are likely to share.

        An equal prompt shares all rows but the last, which it runs itself; one that ends otherwise
        shares a little less. And where `num_common` tokens were those of an earlier prompt, they
        may be those of a later one.
        """
        most = num_prompt - 1
        lengths = {most, most // SNAPSHOT_STEP * SNAPSHOT_STEP, min(num_common - 1, most)}
        self._planned_snapshots = sorted(length for length in lengths if length > self.length)

    def shareable_length(self, num_rows: int) -> int:
        """Return the largest length, at most `num_rows`, that this state can be forked at."""
        if not self._recurrent or num_rows >= self.length:
            return min(num_rows, self.length)
        place = bisect_right(self._snapshots, num_rows)
        return self._snapshots[place - 1] if place else 0

    def will_share(self, num_rows: int) -> int:
        """Return what `shareable_length` will be once the whole prompt has run."""
        if not self._recurrent:
            return num_rows
        planned = [length for length in self._planned_snapshots if length <= num_rows]
        return max([self.shareable_length(num_rows), *planned])

    def fork(
        self, length: int, make_empty: "Callable[[], SequenceState]", room: int = 0
    ) -> "SequenceState":
        """Return a copy of the first `length` committed rows, for another sequence.

        It has room for `room` rows, where it is known that so many will come.
        """
        assert length == self.shareable_length(length), (length, self.length, self._snapshots)
        forked = make_empty()
        forked.reserve(max(length, room))
        for layer, original in zip(forked._kv_layers, self._kv_layers, strict=True):
            layer.copy_from(original, length)
        if length:
            place = self._snapshot_at(length)
            for state, source in zip(forked._recurrent, self._recurrent, strict=True):
                state.copy_from(source, place)
        forked.length = length
        return forked

    def fork_in_place(self, length: int) -> None:
        """Become what `fork` would return, for another sequence that takes this state over."""
        assert 0 < length == self.shareable_length(length), (length, self.length, self._snapshots)
        self.rollback()
        place = self._snapshot_at(length)
        if place is not None:
            for state in self._recurrent:
                state.copy_from(state, place)
            self._forget_snapshots(place + 1, len(self._snapshots))
        self.length = length

    def _append_recurrent(self, first: int, num_rows: int, all_or_none: bool) -> None:
        stop = first + num_rows
        taken = [at for at in self._planned_snapshots if first < at <= stop] if all_or_none else []
        self._forget_snapshots(0, max(0, len(self._snapshots) + len(taken) - MAX_SNAPSHOTS))
        offsets = [at - first for at in taken]
        for state in self._recurrent:
            state.append(num_rows, all_or_none=all_or_none, snapshots=offsets)
        self._pending_snapshots = taken

    def _settle_snapshots(self, *, is_committed: bool) -> None:
        if self._pending_snapshots:
            if is_committed:
                self._snapshots += self._pending_snapshots
            self._pending_snapshots = []

    def _snapshot_at(self, length: int) -> int | None:
        """Return which snapshot holds the state at this length; None where it is the newest."""
        is_newest = length == self.length or not self._recurrent
        return None if is_newest else self._snapshots.index(length)

    def _forget_snapshots(self, first: int, stop: int) -> None:
        for place in reversed(range(first, stop)):
            for state in self._recurrent:
                state.forget_snapshot(place)
            del self._snapshots[place]

    def _capacity_for(self, length: int) -> int:
        if length <= self._capacity:
            return self._capacity
        grown = self._capacity + self._capacity // 4
        if self.max_length is not None:
            grown = min(grown, self.max_length)
        return -(-max(length, grown) // GROWTH) * GROWTH


def make_sequence_state(ops: Ops, layers: Sequence[Layer]) -> SequenceState:
    """Return the state of a sequence without rows, for these layers of a backbone or head."""
    states: list[LayerState | None] = []
    for layer in layers:
        if isinstance(layer.mixer, SharedAttention):
            states.append(states[layer.mixer.source])
        else:
            states.append(None if layer.mixer is None else ops.make_state(layer.mixer))
    return SequenceState(states)
