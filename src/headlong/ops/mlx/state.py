"""Keys and values of the MLX backend, and what the layers of one pass share about its rows.

A row reads a stretch of its cache whose place and length follow from its own position alone, in
whole steps of `STEP` entries, and a mask hides those it may not see. So rows that read the same
stretch go through one product together, with shapes of a row's own: each row is a batch by itself.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import mlx.core as mx
import numpy as np

from headlong.ops.blocks import Rope
from headlong.ops.mlx.host import enter
from headlong.ops.op_set import Rows, Span

STEP = 64
"""Entries of a cache that are read together."""


class MlxKVLayer:
    """Keys and values of one layer and sequence; every write makes new arrays, in place if it can.

    Room is whole steps, all of it finite numbers: what a mask hides is multiplied by 0.
    """

    __slots__ = ("keys", "values")

    def __init__(self, num_kv_heads: int, key_dim: int, value_dim: int, dtype: Any) -> None:
        self.keys = mx.zeros((num_kv_heads, 0, key_dim), dtype)  # (G, capacity, D)
        self.values = mx.zeros((num_kv_heads, 0, value_dim), dtype)

    @property
    def bytes_per_position(self) -> int:
        """Bytes that room for one more position takes."""
        num_numbers = self.keys.shape[2] + self.values.shape[2]
        return int(self.keys.shape[0] * num_numbers * self.keys.itemsize)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved so far."""
        return int(self.keys.nbytes + self.values.nbytes)

    def reserve(self, capacity: int, others: Sequence[Self] = ()) -> None:
        """Make room for `capacity` positions here and in `others`, keeping what is there."""
        enter()
        mx.clear_cache()  # smaller ones were left there
        for layer in (self, *others):
            layer.keys, layer.values = (_grown(one, capacity) for one in (layer.keys, layer.values))

    def copy_from(self, other: Self, num_positions: int) -> None:
        """Hold the first `num_positions` of `other`, making room for them."""
        if num_positions > self.keys.shape[1]:
            self.reserve(num_positions)
        self.keys[:, :num_positions] = other.keys[:, :num_positions]
        self.values[:, :num_positions] = other.values[:, :num_positions]

    def write(self, position: int, keys: Any, values: Any) -> None:
        """Store (n, G, D) keys and values from `position` on."""
        stop = position + len(keys)
        self.keys[:, position:stop] = keys.swapaxes(0, 1)
        self.values[:, position:stop] = values.swapaxes(0, 1)


def _grown(held: Any, capacity: int) -> Any:
    room = -(-capacity // STEP) * STEP - held.shape[1]
    return mx.pad(held, ((0, 0), (0, room), (0, 0))) if room > 0 else held


class KeySpan(NamedTuple):
    """Rows of one span that read the same entries of their cache."""

    first_row: int
    stop_row: int
    first: int
    stop: int
    mask: Any  # (rows, 1, 1, stop - first), 0 where a row may look and -inf elsewhere


class PassPlan:
    """The rows of one pass, as all its layers see them; everything is made once."""

    def __init__(
        self,
        rows: Rows,
        angles: dict[tuple[Rope, int], tuple[Any, Any]] | None = None,
        stretches: dict[int | None, list[list[KeySpan]]] | None = None,
    ) -> None:
        """Plan a pass; `angles` and `stretches` are those that are known already."""
        self.rows = rows
        self._angles = angles or {}
        self._stretches = stretches or {}

    @property
    def asked(self) -> tuple[list[tuple[Rope, int]], list[int | None]]:
        """What layers have asked for so far: rotary positions, and windows."""
        return list(self._angles), list(self._stretches)

    def angles(self, rope: Rope, ahead: int = 0) -> tuple[Any, Any]:
        """Return cosines and sines of the rows' rotary positions: twice (N, 1, R / 2)."""
        key = (rope, ahead)
        if key not in self._angles:
            positions = self.rows.positions[:, None, None] + ahead
            turned = positions * rope.frequencies.astype(np.float64)
            cos, sin = (rope.amplitude * f(turned) for f in (np.cos, np.sin))
            self._angles[key] = (
                mx.array(cos.astype(np.float32)),
                mx.array(sin.astype(np.float32)),
            )
        return self._angles[key]

    def stretches(self, window: int | None) -> list[list[KeySpan]]:
        """Return for every span which of its rows read what."""
        if window not in self._stretches:
            self._stretches[window] = [_cut(span, window) for span in self.rows.spans]
        return self._stretches[window]


def _cut(span: Span, window: int | None) -> list[KeySpan]:
    positions = span.first_position + np.arange(span.num_rows)
    stops = (positions // STEP + 1) * STEP
    firsts = np.zeros_like(stops)
    if window is not None:
        # Whole steps, enough for any window that ends in the last of them.
        firsts = np.maximum(0, stops - (-(-window // STEP) + 1) * STEP)
    found: list[KeySpan] = []
    for stop in np.unique(stops):
        own = np.flatnonzero(stops == stop)
        first = int(firsts[own[0]])
        entries = np.arange(first, stop)
        is_seen = entries <= positions[own, None]
        if window is not None:
            is_seen &= entries > positions[own, None] - window
        mask = np.where(is_seen, np.float32(0), np.float32(-np.inf))[:, None, None]
        begin = span.first_row + int(own[0])
        found.append(KeySpan(begin, begin + len(own), first, int(stop), mx.array(mask)))
    return found
