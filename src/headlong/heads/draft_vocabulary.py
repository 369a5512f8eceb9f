"""The draft vocabulary of a native MTP layer: the tokens it drafts from, instead of all.

A native layer scores drafts with the backbone's LM head, up to 248,000 rows: most of a draft step.
Tokenizers number their tokens by frequency, so the first ones, and those that steer the model, are
nearly all that is written in most texts. In others (a rare script) they are not: each sequence
tells by its own tokens which LM head is worth its time.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import IntArray
from headlong.config import DraftVocabularyName
from headlong.models.traffic import bytes_of, pass_bytes
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer, Linear

SIZE = 32_768
"""Tokens to draft from, where the backbone has at least twice as many."""

_USUAL_K, _USUAL_ACCEPTANCE = 3, 0.7
"""A usual draft, to weigh what a smaller LM head saves against the drafts it misses."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    """Some of the backbone's tokens with an LM head for them alone."""

    ids: IntArray  # (V_draft,) ascending
    lm_head: Linear  # (V_draft, H)
    is_member: NDArray[np.bool_]  # (V,)
    least_share: float
    """The share of a text's tokens that must be among them for this LM head to pay."""

    def share(self, token_ids: IntArray) -> float:
        """Return which share of some tokens is among them."""
        return float(self.is_member[token_ids].mean())


def choose_ids(
    name: DraftVocabularyName, vocab_size: int, special_ids: Iterable[int]
) -> IntArray | None:
    """Return the tokens to draft from; None where leaving others out would save too little."""
    if name == "full" or vocab_size < 2 * SIZE:
        return None
    return np.union1d(np.arange(SIZE), np.array([i for i in special_ids if i < vocab_size], int))


def make_draft_vocabulary(
    name: DraftVocabularyName, ids: IntArray, lm_head: Linear, backbone: Backbone, layer: Layer
) -> DraftVocabulary:
    """Return the vocabulary of an LM head that scores these tokens."""
    is_member = np.zeros(backbone.config.vocab_size, dtype=np.bool_)
    is_member[ids] = True
    least_share = 0.0 if name == "pruned" else _least_share(backbone, layer, lm_head)
    return DraftVocabulary(ids, lm_head, is_member, least_share)


def _least_share(backbone: Backbone, layer: Layer, pruned: Linear) -> float:
    """Return from which share on drafting from fewer tokens gives more tokens per second."""
    one_pass, layer_bytes = pass_bytes(backbone), bytes_of(list(layer.linears))
    full, fewer = (
        1 + _USUAL_K * (layer_bytes + bytes_of([lm_head])) / one_pass
        for lm_head in (backbone.lm_head, pruned)
    )
    shares = np.linspace(0, 1, 101)
    depths = np.arange(_USUAL_K + 1)
    tokens = (_USUAL_ACCEPTANCE * shares[:, None]) ** depths
    pays = tokens.sum(axis=1) / fewer >= tokens[-1].sum() / full
    return float(shares[pays][0]) if pays.any() else 1.0
