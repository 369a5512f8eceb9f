"""The recurrent state of a mixer that takes rows one by one: committed, pending, kept for others.

In:  rows of one sequence, one after the other, and the step that takes one in.
Out: what every row reads. Every step makes new arrays, so a refused row is just dropped. Whose
arrays they are is the backend's business, and what a step computes is the mixer's.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeAlias


class Recurrence(NamedTuple):
    """The state after some row."""

    memory: Any  # (heads, key_dim, value_dim)
    window: Any  # (width - 1, channels), the newest inputs of the convolution


class RecurrentRows(NamedTuple):
    """The projections of rows of one sequence."""

    mixed: Any  # (n, channels): q, k, v before the convolution
    strength: Any  # (n, heads), how much of what a row brings goes into `memory`
    decay: Any  # (n, heads), what `memory` is multiplied with


Step: TypeAlias = Callable[[Recurrence, RecurrentRows], tuple[Recurrence, Any]]
"""Takes one row in, without its first axis; returns the new state and what the row reads."""


class SteppedState:
    """The recurrent state of one layer and sequence; one copy per pending row."""

    def __init__(self, newest: Recurrence) -> None:
        self.newest = newest
        """The committed state."""
        self._pending: list[Recurrence | None] = []
        """After every pending row; None where nothing will be asked for."""
        self._snapshots: list[Recurrence] = []
        self._all_or_none = False
        self._wanted: Sequence[int] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the state; a snapshot takes as many."""
        return int(self.newest.memory.nbytes + self.newest.window.nbytes)

    def append(self, num_rows: int, *, all_or_none: bool, snapshots: Sequence[int]) -> None:
        """Note which rows of the next pass must be kept."""
        self._all_or_none, self._wanted = all_or_none, snapshots

    def commit(self, num_rows: int) -> None:
        """Keep the first `num_rows` pending rows, drop the other pending ones."""
        if num_rows:
            self.newest = self._after(num_rows)
            self._snapshots += [self._after(offset) for offset in self._wanted]
        self.rollback()

    def rollback(self) -> None:
        """Drop all pending rows."""
        self._pending, self._wanted = [], ()

    def copy_from(self, other: Self, snapshot: int | None) -> None:
        """Hold the committed state of `other`, or one of its snapshots."""
        self.newest = other.newest if snapshot is None else other._snapshots[snapshot]

    def forget_snapshot(self, snapshot: int) -> None:
        """Let go of one snapshot."""
        del self._snapshots[snapshot]

    def run(self, rows: RecurrentRows, step: Step) -> list[Any]:
        """Take all rows in, one after the other; return what each reads: (heads * value_dim,)."""
        read: list[Any] = []
        state = self._after(len(self._pending)) if self._pending else self.newest
        last = len(rows.mixed) - 1
        for index, row in enumerate(zip(*rows, strict=True)):
            state, found = step(state, RecurrentRows(*row))
            read.append(found)
            is_kept = not self._all_or_none or index == last or index + 1 in self._wanted
            self._pending.append(state if is_kept else None)
        return read

    def _after(self, num_rows: int) -> Recurrence:
        state = self._pending[num_rows - 1]
        assert state is not None, "rows that were to stand or fall together did not"
        return state
