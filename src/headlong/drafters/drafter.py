"""What every drafter is: something that guesses the next tokens of sequences.

The round tells a drafter what the backbone has settled (`observe`) and asks it for drafts
(`draft`), for all sequences of a step at once. A draft may be wrong, short or empty for any reason:
the backbone's own picks decide, so a drafter can change speed but never text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headlong.arrays import FloatArray, IntArray
from headlong.models.hidden import HiddenRows

DraftState: TypeAlias = Any
"""What a drafter remembers of one sequence; opaque to everyone else."""


@dataclass(frozen=True, slots=True)
class Guess:
    """One drafted token and how sure the drafter is of it."""

    token_id: int
    prob: float


class Guesser(Protocol):
    """Guesses the backbone's pick from a drafter's own logits, with the sequence's own noise."""

    def guess(
        self, logits: FloatArray, vocabulary: IntArray | None, drafted: Sequence[int]
    ) -> Guess:
        """Return the most promising token after history + `drafted`; `logits` is (V_draft,)."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Rows of one sequence that the backbone has processed and the round has committed."""

    state: DraftState
    token_ids: IntArray  # (n,) the rows' own tokens
    hidden: HiddenRows  # n rows
    next_ids: IntArray
    """(n,) the token that follows each row."""


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """A wish for at most `num_tokens` draft tokens of one sequence."""

    state: DraftState
    history: Sequence[int]
    """Every token so far, prompt and answer; the last one is not yet in the backbone's cache."""
    num_tokens: int
    guesser: Guesser


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, how sure the drafter is of each, and who proposed it."""

    token_ids: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()

    def __add__(self, other: "Draft") -> "Draft":
        return Draft(
            self.token_ids + other.token_ids,
            self.probs + other.probs,
            self.sources + other.sources,
        )


def as_draft(guesses: Sequence[Guess], source: str) -> Draft:
    """Turn one drafter's guesses, in order, into a draft."""
    return Draft(
        tuple(guess.token_id for guess in guesses),
        tuple(guess.prob for guess in guesses),
        (source,) * len(guesses),
    )


class Drafter(Protocol):
    """Guesses the next tokens of sequences."""

    name: str
    tap_layers: tuple[int, ...]
    """Backbone layers whose inputs `observe` needs in `HiddenRows.taps`."""

    def begin(self) -> DraftState:
        """Return the memory for a new sequence."""

    def observe(self, settled: Sequence[Settled]) -> None:
        """Take in what the backbone settled; called after every pass, prompt chunks included."""

    def draft(self, asks: Sequence[DraftAsk]) -> list[Draft]:
        """Draft for every ask, in order; never longer than asked."""
