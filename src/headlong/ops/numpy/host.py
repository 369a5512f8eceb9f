"""The host part of the numpy backend: the definition of every pick, and rows kept as they are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops import filters
from headlong.ops.gumbel_argmax import LogitsRow, gumbel_argmax
from headlong.ops.host_ops import PickRule, TokenIndex
from headlong.ops.noise import noise_key
from headlong.ops.token_index import PythonIndex


class NumpyHost:
    """Picks, rows and token indices without compiled kernels."""

    def pick(self, logits: FloatArray, rule: PickRule, position: int) -> int | None:
        """Return the token that a rule picks from bare logits; None without a finite maximum."""
        column = int(logits.argmax())  # NaN counts as largest, so this finds it
        best = float(logits[column])
        if not math.isfinite(best):
            return None
        if rule.temperature == 0:
            return column
        key = noise_key(rule.seed, position)
        if not rule.filters(len(logits)):
            return self.gumbel_argmax(logits, None, best, rule.temperature, key)
        columns = self.surviving_columns(logits, best, rule)
        return int(
            columns[self.gumbel_argmax(logits[columns], columns, best, rule.temperature, key)]
        )

    def gumbel_argmax(
        self,
        logits: FloatArray,
        token_ids: IntArray | None,
        best: float,
        temperature: float,
        key: int,
    ) -> int:
        """Return the column with the largest scaled logit plus noise; see `HostOps`."""
        return gumbel_argmax(LogitsRow(logits, token_ids, best, temperature), key)

    def surviving_columns(self, logits: FloatArray, best: float, rule: PickRule) -> IntArray:
        """Return the columns that the rule's filters leave, ascending."""
        return filters.surviving_columns(logits, best, rule)

    def sum_relative(self, logits: FloatArray, best: float, temperature: float) -> float:
        """Return Σ e^((logit - best) / temperature)."""
        return float(filters.relative_probs(logits, best, temperature).sum())

    def make_rows(self) -> "PlainRows":
        """Return an empty store for rows."""
        return PlainRows()

    def pack_rows(self, rows: FloatArray, parts: Sequence[tuple["PlainRows", int, int]]) -> None:
        """Append to every store of the parts its rows, first to stop, of `rows`."""
        for store, first, stop in parts:
            store.append(rows[first:stop])

    def make_token_index(self) -> TokenIndex:
        """Return an empty index for a new sequence."""
        return PythonIndex()


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
