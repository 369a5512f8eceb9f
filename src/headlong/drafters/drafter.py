"""The interface of drafters, which propose the next tokens of sequences.

A round passes accepted rows to the drafter (`observe`) and requests drafts (`draft`), for all
sequences of a step at once. A draft may be wrong, short or empty for any reason: the backbone's own
picks decide, so a drafter can change speed but never text.
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
"""Source of a draft token that a grammar forced."""

NGRAM = "ngram"
"""Source of a draft token that followed an earlier match in the text."""

DraftState: TypeAlias = Any
"""The state a drafter keeps of one sequence; opaque to others."""


class Guess(NamedTuple):
    """One draft token and the probability that the drafter gives it."""

    token_id: int
    prob: float


class Guesser(Protocol):
    """Guesses the backbone's pick from a drafter's own logits, with the sequence's own noise."""

    def guess(
        self, logits: FloatArray, vocabulary: IntArray | None, drafted: Sequence[int]
    ) -> Guess:
        """Return the most likely pick after history + `drafted`; `logits` is (V_draft,)."""

    def rule(self) -> PickRule | None:
        """Return the rule of `guess`, for drafters that can apply it to logits by themselves.

        None when it needs more than logits, position and noise: penalties, bias, a grammar.
        """


class ObservedRows(NamedTuple):
    """Rows of one sequence for a drafter to observe: run by the backbone, and to be committed."""

    state: DraftState
    token_ids: IntArray  # (n,) the rows' own tokens
    features: tuple[Array, ...]
    """The drafter's input for the rows, (n, F), in one or more consecutive parts."""
    next_ids: IntArray
    """(n,) the token that follows each row."""

    def of(self, state: DraftState) -> "ObservedRows":
        """Return the same rows for another drafter with this state."""
        return ObservedRows(state, self.token_ids, self.features, self.next_ids)


class DraftRequest(NamedTuple):
    """A request for a draft of one sequence."""

    state: DraftState
    history: list[int]
    """Every token so far, prompt and answer; the last one is not yet in the backbone's state."""
    plan: DraftPlan
    guesser: Guesser
    forced: tuple[int, ...] = ()
    """Tokens that a grammar forces next; a draft begins with them."""
    cache: SequenceState | None = None
    """The backbone's state of the sequence, for drafters that read its keys and values."""

    @property
    def num_tokens(self) -> int:
        """Tokens to draft at most."""
        return self.plan.num_tokens

    def of(self, state: DraftState) -> "DraftRequest":
        """Return the same request for another drafter with this state."""
        return self._replace(state=state)


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, each with its probability and its source."""

    token_ids: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    sources: tuple[str, ...] = ()
    is_uncertain: bool = False
    """Whether it ends because its drafter was too uncertain to continue."""
    num_steps: int = 0
    """Number of draft steps that a model ran for it."""

    def __add__(self, other: "Draft") -> "Draft":
        return Draft(
            self.token_ids + other.token_ids,
            self.probs + other.probs,
            self.sources + other.sources,
            other.is_uncertain,
            self.num_steps + other.num_steps,
        )

    def part(self, start: int, stop: int | None = None) -> "Draft":
        """Return the tokens from `start` up to `stop`, or to the end."""
        cut = slice(start, stop)
        is_uncertain = self.is_uncertain and (stop is None or stop >= len(self.token_ids))
        ids, probs, sources = self.token_ids[cut], self.probs[cut], self.sources[cut]
        return Draft(ids, probs, sources, is_uncertain, self.num_steps)


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class PendingDraft:
    """A draft on the device that is verified before the host reads it: one wait per round.

    No threshold shortens it: it has the length of its plan.
    """

    begun: BegunDraft
    num_tokens: int
    source: str

    def resolve(self, token_ids: Sequence[int], probs: Sequence[float]) -> Draft:
        """Return the draft, with tokens and probabilities as read from the device."""
        if not all(math.isfinite(prob) for prob in probs):
            raise HeadError(
                "The drafter produced logits that are not finite.",
                "Use another head or draft model, or go without one (drafter='none').",
            )
        sources = (self.source,) * len(token_ids)
        return Draft(tuple(token_ids), tuple(probs), sources, num_steps=len(token_ids))


def as_draft(guesses: Sequence[Guess], source: str, threshold: Threshold = NO_THRESHOLD) -> Draft:
    """Return a draft of one drafter's guesses, cut at the first that does not pay for its row."""
    probs = tuple([guess.prob for guess in guesses])
    num_kept = threshold.count_kept(probs)
    return Draft(
        tuple([guess.token_id for guess in guesses[:num_kept]]),
        probs[:num_kept],
        (source,) * num_kept,
        is_uncertain=num_kept < len(guesses) or not threshold.can_extend(probs),
        num_steps=len(guesses),
    )


def forced_draft(token_ids: Sequence[int]) -> Draft:
    """Return a draft of tokens that a grammar forces."""
    num_tokens = len(token_ids)
    return Draft(tuple(token_ids), (1.0,) * num_tokens, (GRAMMAR,) * num_tokens)


@runtime_checkable
class LazyDrafter(Protocol):
    """A drafter whose drafts may be verified before they are read."""

    def begin_draft(self, requests: Sequence[DraftRequest]) -> list[Draft | PendingDraft] | None:
        """Begin a draft for every request; None if one of them needs the host."""


class Drafter(Protocol):
    """Proposes the next tokens of sequences."""

    name: str
    tap_layers: tuple[int, ...]
    """Backbone layers whose inputs `features` needs in `HiddenRows.taps`."""

    def begin(self) -> DraftState:
        """Return the draft state of a new sequence."""

    def features(self, hidden: HiddenRows) -> Array:
        """Return the input of `observe` for the rows of a pass, also kept in backlogs: (N, F).

        A view of `hidden`, since it is called after every pass.
        """

    def observe(self, observed: Sequence[ObservedRows]) -> None:
        """Read rows that will be committed, every row once and in order, prompts included."""

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Draft for every request, in order; never longer than its plan."""

    def look_up(self, state: DraftState, history: list[int], threshold: Threshold) -> Draft:
        """Draft at most one token from the history alone, without running a model.

        Called in every round for every idle sequence, so it must cost nearly nothing.
        """

    def share(self, state: DraftState, num_rows: int) -> DraftState:
        """Return a separate state that has observed only the first `num_rows` rows of `state`.

        `state` is not changed, and may be one that a failed draft left unfinished. The new state
        can draft after it has observed another row.
        """

    def num_bytes(self, state: DraftState, num_rows: int = 0) -> int:
        """Return the bytes of a state's caches, or their bytes with `num_rows` rows."""
