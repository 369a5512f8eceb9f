"""Constraint: what a grammar lets a sequence say next.

The round and the sampler see a grammar only through these protocols: token ids go in, a mask and a
few token ids come out. What the grammar describes (JSON, a tool call) and which library reads
it is known to `text/grammar.py` alone; nothing here knows text.
"""

from collections.abc import Sequence
from typing import Protocol

from headlong.arrays import BoolArray
from headlong.errors import HeadlongError

__all__ = ["Constraint", "FormCheck", "Grammar"]


class Constraint(Protocol):
    """The grammar state of one sequence."""

    @property
    def lost(self) -> HeadlongError | None:
        """Why the grammar cannot be continued; None while it can."""

    def mask(self) -> BoolArray:
        """Return which tokens (V,) may come next; never all False, and not to be written to.

        The end-of-text tokens are among them where the text may end; they are the only ones where
        it must.
        """

    def mask_after(self, token_ids: Sequence[int]) -> BoolArray | None:
        """Return what `mask` would be after `token_ids`; None if the grammar forbids these."""

    def push(self, token_id: int) -> None:
        """Move on by one token that the mask allowed."""

    def forced(self) -> Sequence[int]:
        """Return the tokens the grammar leaves no choice about; only ever a draft."""

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """Return how many leading tokens of `token_ids` the grammar allows."""


class FormCheck(Protocol):
    """The grammar state of an answer by another engine."""

    def accepts(self, token_id: int) -> bool:
        """Tell whether the grammar allows the text of a token next.

        A mask allows one way to cut what is forced into tokens; other engines choose others.
        """

    def push(self, token_id: int) -> None:
        """Move on by one token that was accepted."""


class Grammar(Protocol):
    """What an answer must look like; shared by any number of sequences."""

    @property
    def source(self) -> str:
        """It as text for engines in other processes: a JSON schema, or llguidance's Lark."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of it is not followed, in whole sentences."""

    def begin(self) -> Constraint:
        """Return the state of a sequence that has said nothing yet."""

    def begin_spread(self) -> FormCheck:
        """Return the check of an answer of another engine, which sets white space as it likes."""
