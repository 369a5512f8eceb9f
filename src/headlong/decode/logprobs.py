"""Logprobs: how likely the backbone itself found a token and its best alternatives.

In:  a row of raw backbone logits and the chosen token. Out: log-probabilities in float64.
They are the log-softmax of the raw logits, before penalties, bias, temperature and filters, so they
say what the model believes and not what the request made of it.
"""

import math
from dataclasses import dataclass

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.filters import relative_probs, top_columns


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the most likely tokens at a position."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token's log-probability, and the most likely tokens beside it."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...]
    """Best first, equals by token id; the chosen token is among them only if it ranks so high."""


def token_logprob(logits: FloatArray, token_id: int, num_top: int) -> TokenLogprob:
    """Return the log-probability of `token_id` with the `num_top` most likely tokens.

    Tokens of probability zero are not listed.
    """
    best = float(logits.max())
    log_total = best + math.log(relative_probs(logits, best, temperature=1.0).sum())
    columns = top_columns(logits, num_top)
    ranked = columns[np.argsort(-logits[columns], kind="stable")]  # equals stay ordered by id
    top = tuple(
        TopLogprob(column, float(logits[column]) - log_total)
        for column in ranked.tolist()
        if logits[column] > -math.inf
    )
    return TokenLogprob(token_id, float(logits[token_id]) - log_total, top)
