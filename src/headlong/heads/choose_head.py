"""Which head a model gets: the one that was named, else its own, else one we ship for it."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headlong.config import ModelOptions
from headlong.errors import HeadError
from headlong.heads.head import Head
from headlong.heads.head_files import build_head, read_head_weights, read_native_head
from headlong.heads.head_weights import HeadWeights
from headlong.heads.native_nextn import find_stripped, prune_vocabulary
from headlong.heads.nextn import NextnHead
from headlong.heads.shipped_heads import find_shipped_head
from headlong.models.transformer import Backbone
from headlong.text.tokenizer import Tokenizer
from headlong.weights.checkpoint import Checkpoint

_EMBEDDING = "embed_tokens.weight"
_ROWS_COMPARED = 64
_ROUNDING = 0.15
"""What 4 bits change of an embedding on average; another embedding differs by more than 1."""


@dataclass(frozen=True, slots=True)
class ChosenHead:
    """The head a model was given or came with, and what there is to say about it."""

    head: Head | None
    problem: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Whole sentences for the user."""
        if self.problem is not None:
            return (self.problem,)
        return self.head.report.notes if self.head is not None else ()


def choose_head(
    checkpoint: Checkpoint, backbone: Backbone, tokenizer: Tokenizer, options: ModelOptions
) -> ChosenHead:
    """Load the head that was named, else the model's own or a shipped one if it would be used."""

    def build(weights: HeadWeights) -> Head:
        weights = weights.packed(options.head_quant)
        head = build_head(weights, backbone)
        if weights.checkpoint is None or not isinstance(head, NextnHead):
            return head
        vocabulary = options.draft_vocabulary
        return prune_vocabulary(head, weights, checkpoint, vocabulary, tokenizer.added_ids)

    if options.head is not None:
        named = read_head_weights(Path(options.head))
        return ChosenHead(build(share_embedding(named, checkpoint, backbone)))
    if options.drafter not in ("auto", "head"):
        return ChosenHead(None)
    try:
        weights = read_native_head(checkpoint, backbone.config.num_layers)
        if weights is None and (shipped := find_shipped_head(backbone)) is not None:
            weights = read_head_weights(shipped)
        if weights is not None:
            return ChosenHead(build(weights))
    except HeadError as error:
        if options.drafter == "head":
            raise
        return ChosenHead(None, f"The model's own head is not used: {error}")
    stripped = find_stripped(checkpoint)
    return ChosenHead(None, None if stripped is None else str(stripped))


def share_embedding(weights: HeadWeights, model: Checkpoint, backbone: Backbone) -> HeadWeights:
    """Let a head use the model's embedding where its own is a copy of it, but for rounding.

    Many published heads bring one; it would take as much memory again, and more time to read.
    """
    own, original = weights.tensors.get(_EMBEDDING), model.tensors.get("token_embd.weight")
    is_trained = bool(weights.config.get("embed_requires_grad"))  # speculators says so
    if own is None or original is None or own.shape != original.shape:
        return weights
    if is_trained or backbone.embedding_scale != 1.0:
        return weights
    places = np.linspace(0, own.shape[0] - 1, _ROWS_COMPARED).astype(np.int64)
    ours, theirs = (one.with_rows(places).to_float32() for one in (own, original))
    difference = float(np.abs(ours - theirs).mean())
    if not difference <= _ROUNDING * float(np.abs(theirs).mean()):
        return weights
    tensors = {name: one for name, one in weights.tensors.items() if name != _EMBEDDING}
    return replace(weights, tensors=tensors, repeated=(_EMBEDDING,))
