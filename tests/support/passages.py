"""Sequences that a backbone has read, as heads get to see them."""

from dataclasses import dataclass

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.heads.head import Head, ParallelHeads, RecursiveHead
from headlong.models.hidden import HiddenRows
from headlong.models.transformer import Backbone


@dataclass(frozen=True, slots=True)
class Passage:
    """Random tokens 0 … T, and the backbone's hidden rows of 0 … T - 1."""

    next_ids: IntArray
    """(T,) the token that follows each row."""
    hidden: HiddenRows


def read_passage(
    backbone: Backbone, tap_layers: tuple[int, ...] = (), num_rows: int = 9, seed: int = 0
) -> Passage:
    """Let a backbone read random tokens in one pass."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(0, backbone.config.vocab_size, num_rows + 1)
    hidden = backbone.forward([token_ids[:-1]], [backbone.make_cache()], tap_layers)
    return Passage(token_ids[1:], hidden)


def first_logits(head: Head, backbone: Backbone) -> FloatArray:
    """Return a fresh head's logits of depth 1 over a passage."""
    passage = read_passage(backbone, head.tap_layers)
    if isinstance(head, ParallelHeads):
        states = head.states(
            head.features(passage.hidden), [head.make_cache()], [len(passage.next_ids)]
        )
        return head.logits(states[0], 1)
    assert isinstance(head, RecursiveHead)
    state = head.step(
        head.enter(head.features(passage.hidden)), [passage.next_ids], [head.make_cache()]
    )
    return head.logits(state)
