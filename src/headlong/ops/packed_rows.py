"""Rows that wait, and may have to for long, in less memory where the kernels are built.

In:  rows of a pass, and who keeps which of them. Out: the same rows, in 8 bits with a scale for
every 32 numbers: less than a third of the bytes. Who reads them rounds them in the same way, so
next to nothing is lost. Without kernels they stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops import compiled


class PackedRows(Protocol):
    """Rows of several passes, in order; all equally long."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def bytes_for(self, num_rows: int) -> int:
        """Return the bytes so many rows take; 0 before the first have told how long they are."""

    def truncate(self, num_rows: int) -> None:
        """Keep the leading rows only."""

    def first_rows(self, num_rows: int) -> "PackedRows":
        """Return the leading rows, to be kept by somebody else."""

    def read(self) -> FloatArray:
        """Return all rows: (N, F)."""


def make_rows() -> PackedRows:
    """Return room for rows, with none in it."""
    return compiled.native.PackedRows() if compiled.HAS_KERNELS else PlainRows()


def pack_rows(rows: Any, parts: Sequence[tuple[Any, int, int]]) -> None:
    """Append to every `PackedRows` of the parts its rows, first to stop, of `rows`: (N, F).

    They wait on the host, also where the backend computes elsewhere.
    """
    on_host = rows if isinstance(rows, np.ndarray) else rows.float().cpu().numpy()
    if compiled.HAS_KERNELS:
        compiled.native.pack_rows(on_host, parts)
        return
    for plain, first, stop in parts:
        plain.append(on_host[first:stop])


@dataclass(slots=True)
class PlainRows:
    """Rows as they are."""

    parts: list[FloatArray] = field(default_factory=list)  # (n, F) each

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def append(self, rows: FloatArray) -> None:
        """Take a copy of some more rows, since their pass holds those of others as well."""
        self.parts.append(rows.copy())

    def bytes_for(self, num_rows: int) -> int:
        """Return the bytes of so many rows."""
        float_bytes = np.dtype(np.float32).itemsize
        return num_rows * float_bytes * self.parts[0].shape[1] if self.parts else 0

    def truncate(self, num_rows: int) -> None:
        """Keep the leading rows only."""
        self.parts = self.first_rows(num_rows).parts

    def first_rows(self, num_rows: int) -> "PlainRows":
        """Return the leading rows."""
        return PlainRows([self.read()[:num_rows]]) if self.parts else PlainRows()

    def read(self) -> FloatArray:
        """Return all rows."""
        return np.concatenate(self.parts) if self.parts else np.empty((0, 0), np.float32)
