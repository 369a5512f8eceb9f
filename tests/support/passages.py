"""Sequences that a backbone has read, as heads get to see them."""

from dataclasses import dataclass

import numpy as np

from headlong.arrays import IntArray
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
