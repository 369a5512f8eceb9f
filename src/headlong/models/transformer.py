"""The backbone: embedding, layers, final norm, LM head, run over the rows of a pass.

In:  token ids of one or more sequences and their caches.
Out: hidden rows; logits for the rows that need them.
Every architecture file fills this same frame with its own blocks; what differs between them are
fields of the blocks. Knows nothing of sampling, drafts or requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState, make_sequence_state
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.rows import append_rows
from headlong.ops.blocks import Layer, Linear, Matrix, Norm
from headlong.ops.op_set import Array, LazyOps, Ops
from headlong.weights.tensors import StoredTensor


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PerLayerEmbedding:
    """What every token brings along for every layer (`PerLayerInput`), made before the layers run.

    (norm(projection(x) * projection_scale) + table[token] * table_scale) * 2 ** -0.5
    """

    table: StoredTensor  # (V, L * P)
    """Larger than all other weights of such a model, and a pass reads a row per token of it: so it
    stays in its file, mapped, and takes no memory of ours."""
    table_scale: float
    projection: Linear  # (L * P, H)
    projection_scale: float
    norm: Norm  # (P,), of every layer's part alone


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Backbone:
    """The full model, whose picks decide the text."""

    config: ModelConfig
    ops: Ops
    embedding: Matrix  # (V, H)
    layers: tuple[Layer, ...]
    final_norm: Norm
    lm_head: Linear  # (V, H)
    embedding_scale: float = 1.0
    per_layer: PerLayerEmbedding | None = None
    logit_cap: float | None = None
    """Final logits become cap * tanh(logit / cap), so that none is larger (Gemma 4)."""

    @property
    def verifies_lazily(self) -> bool:
        """Whether drafts can be verified that the host does not know yet."""
        return isinstance(self.ops, LazyOps) and self.per_layer is None

    def make_cache(self) -> SequenceState:
        """Return the state of a sequence without rows."""
        return make_sequence_state(self.ops, self.layers)

    def embed(self, token_ids: IntArray) -> Array:
        """Look up token embeddings, with the architecture's scale: (N,) → (N, H)."""
        return self.ops.embed(self.embedding, token_ids, self.embedding_scale)

    def forward(
        self,
        token_ids: Sequence[IntArray],
        caches: Sequence[SequenceState],
        tap_layers: tuple[int, ...] = (),
        *,
        all_or_none: bool = False,
        drafts: Sequence[tuple[int, Array]] = (),
    ) -> HiddenRows:
        """Run one pass over new tokens of one or more sequences, appended to their caches.

        `all_or_none` promises that each sequence's rows will stand or fall together. `drafts` that
        only the backend knows yet (`LazyOps`) take the places of tokens from these rows on.
        """
        rows = append_rows(caches, token_ids, all_or_none=all_or_none)
        if drafts:
            assert isinstance(self.ops, LazyOps)
            rows = rows._replace(token_ids=self.ops.place_drafts(rows.token_ids, drafts))
        caches_by_span = [cache.layers for cache in caches]
        embedded = self.embed(rows.token_ids)  # (N, H)
        if self.per_layer is not None:
            rows = rows._replace(beside=self.per_layer_rows(rows.token_ids, embedded))
        x, taps = self.ops.run_layers(embedded, self.layers, caches_by_span, rows, tap_layers)
        normed = self.ops.norm(x, self.final_norm)
        return HiddenRows(x, normed, taps)

    def logits(self, normed: Array) -> FloatArray:
        """Score the vocabulary for final hidden rows, on the host: (N, H) → (N, V)."""
        return cap_logits(self.ops.to_host(self.ops.project(normed, self.lm_head)), self.logit_cap)

    def per_layer_rows(self, token_ids: IntArray, embedded: Array) -> Array:
        """Return what tokens bring along for every layer, with their embeddings: (N, L * P)."""
        per_layer = self.per_layer
        assert per_layer is not None, "this model has no embeddings for its layers"
        projected = self.ops.project(embedded, per_layer.projection) * per_layer.projection_scale
        parts = projected.reshape(-1, len(per_layer.norm.weight))  # (N * L, P)
        normed = self.ops.norm(parts, per_layer.norm).reshape(len(embedded), -1)
        read = per_layer.table.with_rows(token_ids).to_float32()
        own = self.ops.join([read * np.float32(per_layer.table_scale)])
        return (normed + own) * 2**-0.5


def cap_logits(logits: FloatArray, cap: float | None) -> FloatArray:
    """Return cap * tanh(logit / cap), number by number; the logits themselves without a cap."""
    if cap is None:
        return logits
    capped: FloatArray = np.tanh(logits / np.float32(cap)) * np.float32(cap)
    return capped
