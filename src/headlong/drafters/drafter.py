"""What every drafter is: something that guesses the next tokens of sequences.

The round tells a drafter what the backbone has settled (`observe`) and asks it for drafts
(`draft`), for all sequences of a step at once. A draft may be wrong, short or empty for any reason:
the backbone's own picks decide, so a drafter can change speed but never text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.drafters.draft_plan import NO_THRESHOLD, DraftPlan, Threshold
from headlong.errors import HeadError
from headlong.models.hidden import HiddenRows
from headlong.ops.host_ops import PickRule
from headlong.ops.op_set import Array, BegunDraft

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
    """Rows of one sequence that the backbone has run and that are, or will be, committed."""

    state: DraftState
    token_ids: IntArray  # (n,) the rows' own tokens
    features: tuple[Array, ...]
    """What the drafter reads of the rows, in one or more parts one after the other: (n, F)."""
    next_ids: IntArray
    """(n,) the token that follows each row."""

    def of(self, state: DraftState) -> "Settled":
        """Return the same rows for another drafter, which has this memory."""
        return Settled(state, self.token_ids, self.features, self.next_ids)


class DraftRequest(NamedTuple):
    """A request for a draft of one sequence."""

    state: DraftState
    history: list[int]
    """Every token so far, prompt and answer; the last one is not yet in the backbone's state."""
    plan: DraftPlan
    guesser: Guesser
    forced: tuple[int, ...] = ()
    """Tokens a grammar leaves no choice about: what comes next, so a draft begins with them."""
    cache: SequenceState | None = None
    """The backbone's state of the sequence, for drafters that read its keys and values."""

    @property
    def num_tokens(self) -> int:
        """Tokens to draft at most."""
        return self.plan.num_tokens

    def of(self, state: DraftState) -> "DraftRequest":
        """Return the same request to another drafter, which has this memory."""
        return self._replace(state=state)


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


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft that is verified before anyone reads it, so that a round waits only once.

    No threshold cuts it: it is as long as its plan says.
    """

    begun: BegunDraft
    num_tokens: int
    source: str

    def settle(self, token_ids: Sequence[int], probs: Sequence[float]) -> Draft:
        """Return what it turned out to be."""
        if not all(math.isfinite(prob) for prob in probs):
            raise HeadError(
                "The drafter produced logits that are not finite.",
                "Use another head or draft model, or go without one (drafter='none').",
            )
        sources = (self.source,) * len(token_ids)
        return Draft(tuple(token_ids), tuple(probs), sources, num_steps=len(token_ids))


def as_draft(guesses: Sequence[Guess], source: str, threshold: Threshold = NO_THRESHOLD) -> Draft:
    """Turn one drafter's guesses, in order, into a draft of those that pay for their rows."""
    probs = tuple([guess.prob for guess in guesses])
    num_kept = threshold.count_kept(probs)
    return Draft(
        tuple([guess.token_id for guess in guesses[:num_kept]]),
        probs[:num_kept],
        (source,) * num_kept,
        in_doubt=num_kept < len(guesses) or not threshold.can_extend(probs),
        num_steps=len(guesses),
    )


def forced_draft(token_ids: Sequence[int]) -> Draft:
    """Turn what a grammar forces into a draft."""
    num_tokens = len(token_ids)
    return Draft(tuple(token_ids), (1.0,) * num_tokens, (GRAMMAR,) * num_tokens)


@runtime_checkable
class LazyDrafter(Protocol):
    """A drafter whose drafts may be verified before they are read."""

    def begin_draft(self, requests: Sequence[DraftRequest]) -> list[Draft | PendingDraft] | None:
        """Begin a draft for every request; None where the host has a say in one of them."""


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
        """Read rows that will not be taken back, every row once and in order, prompts included."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for every request, in order; never longer than its plan."""

    def look_up(self, state: DraftState, history: list[int], threshold: Threshold) -> Draft:
        """Draft at most one token from the history alone, without running a model.

        Called in every round for every idle sequence, so it must cost nearly nothing.
        """

    def share(self, state: DraftState, num_rows: int) -> DraftState:
        """Return a memory of its own that has observed the first `num_rows` rows of `state` only.

        `state` stays as it is, and may even have been left half-way by a draft that failed. The new
        memory can draft once it has observed a further row.
        """

    def num_bytes(self, state: DraftState, num_rows: int = 0) -> int:
        """Return the bytes a memory's caches take, or will when they hold `num_rows` rows."""
