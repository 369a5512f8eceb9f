"""A recursive head of one layer, run again for every depth.

In:  the layer and what lies around it (`decoder_layer.py` and the architectures build it).
Out: states and logits, depth after depth. Formats differ in what the layer reads and carries on.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState, make_sequence_state
from headlong.heads.draft_vocabulary import DraftVocabulary
from headlong.heads.head import HeadReport
from headlong.models.hidden import HiddenRows
from headlong.models.rows import append_rows
from headlong.models.transformer import Backbone, cap_logits
from headlong.ops.blocks import Layer, Linear, Matrix, Norm
from headlong.ops.draft_blocks import DraftBlocks, Fusion
from headlong.ops.op_set import Array, Ops, RowBlocks, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHead(ABC):
    """A recursive head of one layer; formats differ in what the layer reads and what is carried."""

    backbone: Backbone
    fc: Linear
    layer: Layer
    norm: Norm
    lm_head: Linear  # (V_draft, H)
    embedding: Matrix  # (V, H), the backbone's unless the head has its own
    embedding_scale: float
    vocabulary: IntArray | None  # (V_draft,)
    num_bytes: int
    report: HeadReport
    tap_layers: tuple[int, ...] = ()
    """Backbone layers whose inputs it reads; empty when it reads the last hidden state."""
    fewer_tokens: DraftVocabulary | None = None
    """What it may draft from instead of its vocabulary, where a text's tokens are among them."""

    @property
    def ops(self) -> Ops:
        """The backend it runs on."""
        return self.backbone.ops

    @property
    def carries_normed(self) -> bool:
        """Whether the next depth reads the layer's result after the final norm."""
        return False

    @property
    def fusion(self) -> Fusion | None:
        """How state and embedding become one input; None when the layer reads both."""
        return None

    @property
    def zeroes_first_embedding(self) -> bool:
        """Whether the row at position 0 does not see its token."""
        return False

    @property
    @abstractmethod
    def kind(self) -> str:
        """ "eagle3" or "nextn"."""

    @abstractmethod
    def features(self, hidden: HiddenRows) -> Array:
        """Return what it reads of the rows of a backbone pass: (N, F)."""

    @abstractmethod
    def enter(self, features: Array, blocks: RowBlocks | None = None) -> Array:
        """Turn features into the states the first step reads; by other blocks than `ops`."""

    @abstractmethod
    def layer_input(self, state: Array, rows: Rows) -> tuple[Array, Array | None]:
        """Return what the layer reads, and what it reads beside that."""

    def with_fewer_tokens(self) -> Self | None:
        """Return this head drafting from fewer tokens; layer and cache stay the same."""
        fewer = self.fewer_tokens
        if fewer is None:
            return None
        return replace(self, vocabulary=fewer.ids, lm_head=fewer.lm_head, fewer_tokens=None)

    def make_cache(self) -> SequenceState:
        """Return an empty cache for one sequence."""
        return make_sequence_state(self.ops, [self.layer])

    def step(
        self, state: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run the layer over rows; return the states to carry on: (N, H)."""
        rows = append_rows(caches, token_ids)
        kv_layers = [cache.layers[0] for cache in caches]
        x, beside = self.layer_input(state, rows)
        if self.layer.mixer is not None:
            x = self.ops.mix(x, self.layer.mixer, kv_layers, rows, beside=beside)
        if self.layer.channel is not None:
            x = self.ops.transform(x, self.layer.channel)
        return self.carried(x)

    def follow(
        self, features: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run over the rows of a backbone pass; return each sequence's last state: (S, H)."""
        rows = append_rows(caches, token_ids)
        kv_layers = [cache.layers[0] for cache in caches]
        x, beside = self.layer_input(self.enter(features), rows)
        return self.carried(self.ops.run_last(x, self.layer, kv_layers, rows, beside=beside))

    def logits(self, state: Array) -> FloatArray:
        """Score the draft vocabulary: (N, H) → (N, V_draft)."""
        normed = state if self.carries_normed else self.ops.norm(state, self.norm)
        scores = self.ops.to_host(self.ops.project(normed, self.lm_head))
        return cap_logits(scores, self.logit_cap)

    @property
    def logit_cap(self) -> float | None:
        """The backbone's cap belongs to its LM head, not to one of the head's own."""
        return self.backbone.logit_cap if self.lm_head is self.backbone.lm_head else None

    def draft_blocks(self) -> DraftBlocks:
        """Return what `step` and `logits` compute as one record.

        A draft never begins at position 0, so what families do to the first embedding is no part.
        """
        return DraftBlocks(
            embedding=self.embedding,
            embedding_scale=self.embedding_scale,
            layer=self.layer,
            fusion=self.fusion,
            norm=self.norm,
            lm_head=self.lm_head,
            carries_normed=self.carries_normed,
            logit_cap=self.logit_cap,
            vocabulary=self.vocabulary,
        )

    def carried(self, x: Array) -> Array:
        """Return what the next depth reads of the layer's result: (N, H)."""
        return self.ops.norm(x, self.norm) if self.carries_normed else x
