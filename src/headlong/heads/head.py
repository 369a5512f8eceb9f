"""The interfaces of heads: recursive heads, parallel heads and assistants.

A *recursive* head is one small layer that runs again for every depth, fed with the token it just
drafted and the state it just left (EAGLE-3 format, DeepSeek/Qwen-style `nextn`). *Parallel* heads
draft all depths from one state (Medusa, Meta). An *assistant* is a small decoder that attends to
the backbone's own keys and values (Gemma 4). All read the hidden rows that the backbone's own pass
produced, so the prompt runs only once.

Row convention, for all: the row of position p holds the backbone's hidden state at p, is paired
with the token at p + 1, and at depth 1 predicts the token at p + 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.config import QuantName
from headlong.heads.draft_vocabulary import DraftVocabulary
from headlong.models.hidden import HiddenRows
from headlong.ops.draft_blocks import DraftBlocks
from headlong.ops.op_set import Array, Ops


@dataclass(frozen=True, slots=True)
class HeadReport:
    """What loading a head left to say; nothing of it is a reason to refuse."""

    unused_tensors: tuple[str, ...] = ()
    """Tensors of the head's file that nothing reads."""
    notes: tuple[str, ...] = ()
    """Whole sentences for the user."""
    quant: QuantName | None = None
    """The format it was packed in; None for that of its file."""


class HeadBase(Protocol):
    """What both shapes of a head have in common."""

    @property
    def kind(self) -> str:
        """ "eagle3", "nextn", "medusa", "meta" or "assistant"."""

    @property
    def ops(self) -> Ops:
        """The backend it runs on."""

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """Backbone layers whose inputs it reads; empty when it reads the last hidden state."""

    @property
    def vocabulary(self) -> IntArray | None:
        """(V_draft,) backbone token id of every draft id; None for the backbone's vocabulary."""

    @property
    def report(self) -> HeadReport:
        """What loading the head left to say."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the head's own weights, as stored."""

    def make_cache(self) -> SequenceState:
        """Return an empty cache for one sequence (no layers, where a head keeps no keys)."""

    def features(self, hidden: HiddenRows) -> Array:
        """Return what it reads of the rows of a backbone pass: (N, F)."""


@runtime_checkable
class RecursiveHead(HeadBase, Protocol):
    """A head that drafts depth after depth with the same weights."""

    def enter(self, features: Array) -> Array:
        """Turn features into the states the first step reads: (N, F) → (N, H)."""

    def step(
        self, state: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run the layer over rows of one or more sequences; return the states to carry on: (N, H).

        `token_ids` has one array per sequence, rows of `state` in the same order. Every row is
        appended to its sequence's cache as a pending entry; the caller commits them or rolls back.
        """

    def follow(
        self, features: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run over the rows of a backbone pass; return each sequence's last state: (S, H).

        Same result as `step` over `enter` for the caches and for those rows. What is never read
        of the other rows is not computed: most of the cost of a prompt.
        """

    def logits(self, state: Array) -> FloatArray:
        """Score the draft vocabulary from carried states: (N, H) → (N, V_draft)."""

    def draft_blocks(self) -> DraftBlocks:
        """Return what `step` and `logits` compute, for backends that make whole drafts."""

    @property
    def fewer_tokens(self) -> DraftVocabulary | None:
        """A smaller vocabulary it may draft from, where a text's tokens are among them."""

    def with_fewer_tokens(self) -> "RecursiveHead | None":
        """Return this head drafting from that; layer and cache stay the same."""


@runtime_checkable
class ParallelHeads(HeadBase, Protocol):
    """One small head per depth, all reading the same backbone state."""

    @property
    def num_depths(self) -> int:
        """How many tokens one pass drafts."""

    def states(
        self, features: Array, caches: Sequence[SequenceState], sizes: Sequence[int]
    ) -> Array:
        """Run every depth's block over the rows: (N, F) → (num_depths, N, H).

        `sizes` says how many rows each sequence has; entries are appended pending to `caches`.
        """

    def logits(self, state: Array, depth: int) -> FloatArray:
        """Score the draft vocabulary at `depth` (1 … num_depths): (N, H) → (N, V_draft)."""


@runtime_checkable
class AssistantHead(HeadBase, Protocol):
    """A head that reads the backbone's own keys and values, and keeps none (Gemma 4's assistant).

    All tokens of a draft are guessed from the same row, the backbone's last: it stands for what is
    drafted beyond it.
    """

    def step(
        self,
        state: Array,
        token_ids: IntArray,
        caches: Sequence[SequenceState],
        positions: Sequence[int],
    ) -> Array:
        """Run over one row of every sequence: (N, H) states and the tokens behind them → (N, A).

        `caches` are the backbone's, `positions` those of the rows that the states belong to.
        """

    def logits(self, result: Array) -> FloatArray:
        """Score the vocabulary from what `step` returned: (N, A) → (N, V)."""

    def carry(self, result: Array) -> Array:
        """Turn what `step` returned into the states of the next step: (N, A) → (N, H)."""


Head: TypeAlias = RecursiveHead | ParallelHeads | AssistantHead
"""Any head; use `isinstance` with one of the protocols."""
