"""Layer states: what the mixer of one layer keeps of one sequence (design note 0007).

Attention keeps an entry per position (`KVLayer`); a recurrent mixer keeps one value that every row
replaces (`RecurrentState`). Each backend has its own classes for both, made by `Ops.make_state` and
written by its passes. Everything else goes through `cache/sequence_state.py`, which updates all
states of a sequence together. A state is of exactly one kind, told apart by its methods, since
those of the native backend are C++ objects.
"""

from collections.abc import Sequence
from typing import Protocol, Self, TypeAlias, TypeGuard


class KVLayer(Protocol):
    """One layer's keys and values of one sequence.

    An entry per position. It does not know how many are committed: entries beyond the sequence's
    length are overwritten by the next pass, so it needs no commit and no rollback.
    """

    def reserve(self, capacity: int, others: Sequence[Self] = ()) -> None:
        """Make room for `capacity` positions here and in `others`, keeping what is there."""

    def copy_from(self, other: Self, num_positions: int) -> None:
        """Hold the first `num_positions` of `other`, making room for them."""

    @property
    def bytes_per_position(self) -> int:
        """Bytes that room for one more position takes."""

    @property
    def num_bytes(self) -> int:
        """Bytes reserved so far."""


class RecurrentState(Protocol):
    """One layer's recurrent state of one sequence.

    It cannot go back to an earlier length, except where a snapshot was taken.
    """

    def append(self, num_rows: int, *, all_or_none: bool, snapshots: Sequence[int]) -> None:
        """Get ready for the `num_rows` pending rows of the next pass.

        With `all_or_none` these rows will be committed or rolled back together, and none are
        pending before them. `snapshots` are then to be taken after so many of the rows, in rising
        order; they count once the rows are committed.
        """

    def commit(self, num_rows: int) -> None:
        """Keep the first `num_rows` pending rows, drop the other pending ones."""

    def rollback(self) -> None:
        """Drop all pending rows."""

    def copy_from(self, other: Self, snapshot: int | None) -> None:
        """Hold the committed state of `other`, or one of its snapshots, counted from the oldest."""

    def forget_snapshot(self, snapshot: int) -> None:
        """Let go of one snapshot."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the state; a snapshot takes as many."""


LayerState: TypeAlias = KVLayer | RecurrentState


def has_positions(state: LayerState | None) -> TypeGuard[KVLayer]:
    """Tell whether a state has an entry per position."""
    return hasattr(state, "reserve")


def is_recurrent(state: LayerState | None) -> TypeGuard[RecurrentState]:
    """Tell whether a state is one value that every row replaces."""
    return hasattr(state, "rollback")
