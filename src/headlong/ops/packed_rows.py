"""Rows that may have to wait for long, in less memory where the kernels are built.

In:  rows of numbers, of several passes. Out: the same rows together, in 8 bits with a scale for
every 32 numbers: less than a third of the bytes. Who reads them rounds them in the same way, so
next to nothing is lost. Without kernels they stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops import compiled


class PackedRows(Protocol):
    """Rows that were packed together."""

    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and numbers of a row: (N, F)."""

    @property
    def nbytes(self) -> int:
        """The bytes they take."""

    def read(self, first: int, stop: int) -> FloatArray:
        """Return rows `first` up to, not including, `stop`: (n, F)."""


def pack_rows(parts: Sequence[FloatArray]) -> PackedRows:
    """Pack rows, (n, F) each, in order."""
    return (
        compiled.native.PackedRows(parts)
        if compiled.HAS_KERNELS
        else PlainRows(np.concatenate(parts))
    )


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Rows as they are."""

    rows: FloatArray  # (N, F)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and numbers of a row."""
        return self.rows.shape

    @property
    def nbytes(self) -> int:
        """The bytes they take."""
        return self.rows.nbytes

    def read(self, first: int, stop: int) -> FloatArray:
        """Return some of them."""
        return self.rows[first:stop]
