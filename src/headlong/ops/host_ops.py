"""Operations that every backend has on the host: sampling, packed rows, the token index.

Pick a token from a row of logits, store rows of the draft backlog, and find earlier occurrences of
tokens. `ops/numpy/host.py` defines the results, `ops/native/host.py` computes
the same with compiled kernels, up to the last bit of a logarithm or a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headlong.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class PickRule:
    """How a token is picked from logits that need no other adjustment; see `SamplingParams`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int

    def filters(self, num_tokens: int) -> bool:
        """Tell whether top-k, top-p or min-p drop any of `num_tokens` tokens."""
        return 0 < self.top_k < num_tokens or self.top_p < 1 or self.min_p > 0


class PackedRows(Protocol):
    """Rows of several passes, in order; all equally long."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def bytes_for(self, num_rows: int) -> int:
        """Return the bytes of `num_rows` rows; 0 before their width is known."""

    def truncate(self, num_rows: int) -> None:
        """Keep the leading rows only."""

    def first_rows(self, num_rows: int) -> "PackedRows":
        """Return the leading rows as an object of their own."""

    def read(self) -> FloatArray:
        """Return all rows: (N, F)."""


class TokenIndex(Protocol):
    """An index of pairs of tokens in one sequence."""

    def find(
        self, history: list[int], min_length: int, assumed: Sequence[int]
    ) -> tuple[int, int] | None:
        """Return the end and the length of the longest match, the latest of equals.

        What matches are the last tokens of `history` and `assumed` behind it; at least two, and
        `min_length` of them. The match lies in `history`, which begins as it did the last time.
        """


class HostOps(Protocol):
    """The part of a backend that runs on the host."""

    def pick(self, logits: FloatArray, rule: PickRule, position: int) -> int | None:
        """Return the token that a rule picks from bare logits; None without a finite maximum."""

    def gumbel_argmax(
        self,
        logits: FloatArray,
        token_ids: IntArray | None,
        best: float,
        temperature: float,
        key: int,
    ) -> int:
        """Return the column with the largest scaled logit plus noise, the lowest one among equals.

        `best` is the maximum of `logits`, `key` that of the position's noise. Columns are token ids
        unless `token_ids` names them.
        """

    def surviving_columns(self, logits: FloatArray, best: float, rule: PickRule) -> IntArray:
        """Return the columns that the rule's filters leave, ascending."""

    def sum_relative(self, logits: FloatArray, best: float, temperature: float) -> float:
        """Return Σ e^((logit - best) / temperature), to six digits at least."""

    def make_rows(self) -> PackedRows:
        """Return an empty store for rows."""

    def pack_rows(self, rows: FloatArray, parts: Sequence[tuple[Any, int, int]]) -> None:
        """Append to every store of the parts its rows, first to stop, of `rows`: (N, F)."""

    def make_token_index(self) -> TokenIndex:
        """Return an empty index for a new sequence."""
