"""What every drafter is: something that guesses the next tokens of sequences.

The round tells a drafter what the backbone has settled (`observe`) and asks it for drafts
(`draft`), for all sequences of a step at once. A draft may be wrong, short or empty for any reason:
the backbone's own picks decide, so a drafter can change speed but never text.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from headlong.arrays import FloatArray, IntArray
from headlong.models.hidden import HiddenRows
from headlong.ops.op_set import Array
from headlong.ops.picking import PickRule
from headlong.ops.worth import Worth

GRAMMAR = "grammar"
"""Source of a draft token that a grammar left no choice about."""

NGRAM = "ngram"
"""Source of a draft token that was copied from behind an earlier match."""

DraftState: TypeAlias = Any
"""What a drafter remembers of one sequence; opaque to everyone else."""


class Guess(NamedTuple):
    """One drafted token and how sure the drafter is of it."""

    token_id: int
    prob: float


class Guesser(Protocol):
    """Guesses the backbone's pick from a drafter's own logits, with the sequence's own noise."""

    def guess(
        self, logits: FloatArray, vocabulary: IntArray | None, drafted: Sequence[int]
    ) -> Guess:
        """Return the most promising token after history + `drafted`; `logits` is (V_draft,)."""

    def rule(self) -> PickRule | None:
        """Return how `guess` follows from bare logits, for drafters that can pick by themselves.

        None when more than logits, position and noise decides: penalties, bias, a grammar.
        """


class Settled(NamedTuple):
    """Rows of one sequence that the backbone has processed and the round has committed."""

    state: DraftState
    token_ids: IntArray  # (n,) the rows' own tokens
    features: tuple[Array, ...]
    """What the drafter reads of the rows, in one or more parts one after the other: (n, F)."""
    next_ids: IntArray
    """(n,) the token that follows each row."""

    def of(self, state: DraftState) -> "Settled":
        """Return the same rows for another drafter, which has this memory."""
        return Settled(state, self.token_ids, self.features, self.next_ids)


class Bar(NamedTuple):
    """How sure a draft must be from its first token on; where it is less, it ends."""

    keep: float
    """A token that takes the product of chances below this is not worth its row in the pass."""
    go_on: float
    """Below this product of chances, guessing one more is not worth the drafter's time."""
    worth: Worth | None = None
    """Tells from a token's probability its chance to stand if all before it do; None: the same."""

    def chance(self, prob: float) -> float:
        """Return the chance of a token of this probability to stand if all before it do."""
        return prob if self.worth is None else self.worth(prob)


NO_BAR = Bar(0.0, 0.0)

NO_BARS: Mapping[str, Bar] = MappingProxyType({})


class DraftAsk(NamedTuple):
    """A wish for at most `num_tokens` draft tokens of one sequence."""

    state: DraftState
    history: list[int]
    """Every token so far, prompt and answer; the last one is not yet in the backbone's cache."""
    num_tokens: int
    guesser: Guesser
    forced: tuple[int, ...] = ()
    """Tokens a grammar leaves no choice about: what comes next, so a draft begins with them."""
    bars: Mapping[str, Bar] = NO_BARS
    """By drafter: how sure it must be for more tokens to pay; one not named drafts all."""

    def of(self, state: DraftState) -> "DraftAsk":
        """Return the same wish of another drafter, which has this memory."""
        return DraftAsk(state, self.history, self.num_tokens, self.guesser, self.forced, self.bars)

    def bar(self, name: str) -> Bar:
        """Return the bar for the drafter of this name."""
        return self.bars.get(name, NO_BAR)


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, how sure the drafter is of each, and who proposed it."""

    token_ids: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    in_doubt: bool = False
    """Whether it ends because its drafter was not sure enough to go on."""
    num_steps: int = 0
    """How often a model ran for it."""

    def __add__(self, other: "Draft") -> "Draft":
        return Draft(
            self.token_ids + other.token_ids,
            self.probs + other.probs,
            self.sources + other.sources,
            other.in_doubt,
            self.num_steps + other.num_steps,
        )

    def part(self, start: int, stop: int | None = None) -> "Draft":
        """Return the tokens from `start` up to `stop`, or to the end."""
        cut = slice(start, stop)
        in_doubt = self.in_doubt and (stop is None or stop >= len(self.token_ids))
        ids, probs, sources = self.token_ids[cut], self.probs[cut], self.sources[cut]
        return Draft(ids, probs, sources, in_doubt, self.num_steps)


NO_DRAFT = Draft()


def as_draft(guesses: Sequence[Guess], source: str, bar: Bar = NO_BAR) -> Draft:
    """Turn one drafter's guesses, in order, into a draft of those that are worth their rows."""
    probs = tuple([guess.prob for guess in guesses])
    num_kept = num_worth(probs, bar)
    return Draft(
        tuple([guess.token_id for guess in guesses[:num_kept]]),
        probs[:num_kept],
        (source,) * num_kept,
        in_doubt=num_kept < len(guesses) or not goes_on(probs, bar),
        num_steps=len(guesses),
    )


def forced_draft(token_ids: Sequence[int]) -> Draft:
    """Turn what a grammar forces into a draft."""
    num_tokens = len(token_ids)
    return Draft(tuple(token_ids), (1.0,) * num_tokens, (GRAMMAR,) * num_tokens)


def num_worth(probs: Iterable[float], bar: Bar) -> int:
    """Return how many leading guesses are worth a row in the pass."""
    chance, num_kept = 1.0, 0
    for prob in probs:
        chance *= bar.chance(prob)
        if not bar.keep <= chance:  # nor is a chance that is no number
            break
        num_kept += 1
    return num_kept


def goes_on(probs: Iterable[float], bar: Bar) -> bool:
    """Tell whether the guesses so far are sure enough for one more."""
    return math.prod(bar.chance(prob) for prob in probs) >= bar.go_on


class Drafter(Protocol):
    """Guesses the next tokens of sequences."""

    name: str
    tap_layers: tuple[int, ...]
    """Backbone layers whose inputs `features` needs in `HiddenRows.taps`."""

    def begin(self) -> DraftState:
        """Return the memory for a new sequence."""

    def features(self, hidden: HiddenRows) -> Array:
        """Return what `observe` reads of the rows of a pass, and is kept while they wait: (N, F).

        A view of `hidden`, as it is asked for after every pass.
        """

    def observe(self, settled: Sequence[Settled]) -> None:
        """Take in what the backbone settled, every row once and in order, prompts included."""

    def draft(self, asks: Sequence[DraftAsk]) -> list[Draft]:
        """Draft for every ask, in order; never longer than asked."""

    def copy(self, state: DraftState, history: list[int], bar: Bar) -> Draft:
        """Draft one token, or none, for a sequence whose rows wait: by no more than its tokens.

        Asked in every round, of every sequence that does not draft, so it must cost nearly nothing.
        """

    def share(self, state: DraftState, num_rows: int) -> DraftState:
        """Return a memory of its own that has observed the first `num_rows` rows of `state` only.

        `state` stays as it is, and may even have been left half-way by a draft that failed. The new
        memory can draft once it has observed a further row.
        """

    def num_bytes(self, state: DraftState, num_rows: int = 0) -> int:
        """Return the bytes a memory's caches take, or will when they hold `num_rows` rows."""
