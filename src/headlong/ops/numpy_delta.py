"""The gated delta rule in numpy: one recurrence step per row, in order. The oracle of the kernels.

In:  projected rows of one sequence and its state. Out: what every row reads of the state.
Prompt, verify and decode rows take the very same step, and all shapes are those of one row, so how
rows are cut into passes changes no bit. Every step makes new arrays: a refused row is just dropped.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.op_set import GatedDeltaNet

UNIT_EPS = np.float32(1e-6)
"""Added to the squared length of queries and keys before they are divided by it."""


class Recurrence(NamedTuple):
    """The state after some row."""

    memory: FloatArray  # (value heads, key_dim, value_dim)
    window: FloatArray  # (width - 1, channels), the newest inputs of the convolution


class DeltaRows(NamedTuple):
    """The projections of rows of one sequence."""

    mixed: FloatArray  # (n, channels): q, k, v before the convolution
    beta: FloatArray  # (n, value heads)
    decay: FloatArray  # (n, value heads), what `memory` is multiplied with


class NumpyDeltaState:
    """The recurrent state of one layer and sequence; one copy per pending row."""

    def __init__(self, block: GatedDeltaNet) -> None:
        width, num_channels = block.convolution.shape
        self.newest = Recurrence(
            np.zeros((block.num_value_heads, block.key_dim, block.value_dim), dtype=np.float32),
            np.zeros((width - 1, num_channels), dtype=np.float32),
        )
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

    def run(self, rows: DeltaRows, block: GatedDeltaNet) -> FloatArray:
        """Take all rows in, one after the other; return what they read: (n, heads * value_dim)."""
        read = np.empty((len(rows.mixed), block.num_value_heads * block.value_dim), np.float32)
        state = self._after(len(self._pending)) if self._pending else self.newest
        last = len(rows.mixed) - 1
        for index, mixed in enumerate(rows.mixed):
            step = DeltaRows(mixed, rows.beta[index], rows.decay[index])
            state, read[index] = _step(state, step, block)
            is_kept = not self._all_or_none or index == last or index + 1 in self._wanted
            self._pending.append(state if is_kept else None)
        return read

    def _after(self, num_rows: int) -> Recurrence:
        state = self._pending[num_rows - 1]
        assert state is not None, "rows that were to stand or fall together did not"
        return state


def _step(state: Recurrence, row: DeltaRows, block: GatedDeltaNet) -> tuple[Recurrence, FloatArray]:
    """Take one row in: decay, correct what its key recalls, read with its query."""
    inputs = np.concatenate([state.window, row.mixed[None]])  # (width, channels)
    query, key, value = _heads(_convolve(inputs, block.convolution), block)
    memory = state.memory * row.decay[:, None, None]
    recalled = np.sum(memory * key[:, :, None], axis=1)  # (heads, value_dim)
    correction = row.beta[:, None] * (value - recalled)
    memory = memory + key[:, :, None] * correction[:, None]
    read = np.sum(memory * query[:, :, None], axis=1)  # (heads, value_dim)
    return Recurrence(memory, inputs[1:]), read.reshape(-1)


def _convolve(inputs: FloatArray, factors: FloatArray) -> FloatArray:
    """Mix every channel with its own past, then silu: (width, channels) → (channels,)."""
    mixed: FloatArray = inputs[0] * factors[0]
    for row, factor in zip(inputs[1:], factors[1:], strict=True):
        mixed = mixed + row * factor
    with np.errstate(over="ignore"):
        return np.divide(mixed, np.float32(1) + np.exp(-mixed), dtype=np.float32)


def _heads(mixed: FloatArray, block: GatedDeltaNet) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Cut into heads; queries and keys of unit length, repeated for the value heads they serve."""
    key_size = block.num_key_heads * block.key_dim
    query, key, value = np.split(mixed, [key_size, 2 * key_size])
    num_each = block.num_value_heads // block.num_key_heads
    query = _unit(query.reshape(-1, block.key_dim)) * np.float32(block.key_dim**-0.5)
    key = _unit(key.reshape(-1, block.key_dim))
    return (
        np.repeat(query, num_each, axis=0),
        np.repeat(key, num_each, axis=0),
        value.reshape(-1, block.value_dim),
    )


def _unit(heads: FloatArray) -> FloatArray:
    length = np.sqrt(np.sum(np.square(heads), axis=-1, keepdims=True) + UNIT_EPS)
    unit: FloatArray = heads / length
    return unit
