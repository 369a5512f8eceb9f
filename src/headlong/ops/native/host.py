"""The host part of the native backend: picks, packed rows and token indices in compiled kernels.

Rows that wait for a drafter are kept in 8 bits with a scale for every 32 numbers, less than a third
of the bytes. The drafter's first projection rounds them in the same way, so next to nothing is
lost.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops import _native
from headlong.ops.host_ops import PickRule

_WORD = 2**64 - 1


@lru_cache(maxsize=256)
def native_rule(rule: PickRule) -> _native.PickRule:
    """Return a rule as the kernels take it."""
    seed = rule.seed & _WORD
    return _native.PickRule(rule.temperature, rule.top_k, rule.top_p, rule.min_p, seed)


class NativeHost:
    """Picks, rows and token indices by compiled kernels."""

    def pick(self, logits: FloatArray, rule: PickRule, position: int) -> int | None:
        """Return the token that a rule picks from bare logits; None without a finite maximum."""
        token_id = _native.pick(np.ascontiguousarray(logits), native_rule(rule), position)
        return None if token_id < 0 else token_id

    def gumbel_argmax(
        self,
        logits: FloatArray,
        token_ids: IntArray | None,
        best: float,
        temperature: float,
        key: int,
    ) -> int:
        """Return the column with the largest scaled logit plus noise; see `HostOps`."""
        return _native.race(np.ascontiguousarray(logits), token_ids, best, temperature, key)

    def surviving_columns(self, logits: FloatArray, best: float, rule: PickRule) -> IntArray:
        """Return the columns that the rule's filters leave, ascending."""
        return _native.surviving_columns(np.ascontiguousarray(logits), best, native_rule(rule))

    def sum_relative(self, logits: FloatArray, best: float, temperature: float) -> float:
        """Return Σ e^((logit - best) / temperature), to six digits."""
        return _native.sum_relative(np.ascontiguousarray(logits), best, temperature)

    def make_rows(self) -> _native.PackedRows:
        """Return an empty store for rows."""
        return _native.PackedRows()

    def pack_rows(
        self, rows: FloatArray, parts: Sequence[tuple[_native.PackedRows, int, int]]
    ) -> None:
        """Append to every store of the parts its rows, first to stop, of `rows`."""
        _native.pack_rows(rows, parts)

    def make_token_index(self) -> _native.TokenIndex:
        """Return an empty index for a new sequence."""
        return _native.TokenIndex()
