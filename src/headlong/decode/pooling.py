"""Pooling: one vector for a whole prompt, out of the backbone's last hidden rows.

In:  the hidden rows of a prompt as they are computed, in order. Out: a vector of length 1.
Rows are added one by one in float64, so that how a prompt was cut changes no bit; one that runs
again after a failure is not counted twice.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray

Pooling: TypeAlias = Literal["mean", "last"]
"""Which rows count: all of the prompt's alike, or its last one."""


@dataclass(slots=True)
class PooledRows:
    """What has been read of one prompt."""

    kind: Pooling
    num_rows: int = 0
    _total: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def add(self, first: int, rows: FloatArray) -> None:
        """Take rows (N, H) in, the first of them at place `first` of the prompt."""
        for row in rows[max(0, self.num_rows - first) :].astype(np.float64):
            self._total = row if self.kind == "last" else self._total + row
            self.num_rows += 1

    def vector(self) -> list[float]:
        """Return the vector; a prompt whose rows cancel out has none but zeros."""
        length = float(np.linalg.norm(self._total))
        return [float(value) for value in self._total / (length or 1.0)]
