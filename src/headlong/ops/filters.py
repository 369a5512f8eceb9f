"""Filters: temperature, top-k, top-p and min-p, as the columns of a logits row that stay.

In:  one row of penalised logits, its maximum, the sampling parameters. Out: surviving columns.
Tokens rank by logit, ties by column, lowest first; every filter keeps the head of that ranking:

    top-k   the first k tokens, exactly k also when the k-th ties with the next;
    top-p   the shortest head whose probability reaches top_p, among what top-k left, at least one;
    min-p   tokens at least min_p times as likely as the best. The ratio of two probabilities does
            not change when others are dropped, so it needs no renormalising after top-k and top-p.

Knows nothing of noise, history or token ids. The float64 sums here define the exact boundary.
"""

import math

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray, IntArray
from headlong.ops.host_ops import PickRule

_TOP_P_RANGES = (4.0, 8.0, 12.0, 16.0, math.inf)
"""How far below the best logit (in units of temperature) top-p looks, attempt after attempt."""


def scale(logits: FloatArray, best: float, temperature: float) -> NDArray[np.float64]:
    """Return (logits - best) / temperature: 0 for the best token, negative for the others."""
    scaled = logits.astype(np.float64)
    scaled -= best
    with np.errstate(over="ignore"):  # near temperature 0 the gaps grow to -inf, as they should
        scaled /= temperature
    return scaled


def relative_probs(logits: FloatArray, best: float, temperature: float) -> NDArray[np.float64]:
    """Return every token's probability as a multiple of the best token's."""
    scaled = scale(logits, best, temperature)
    return np.exp(scaled, out=scaled)


def at_least(logits: FloatArray, cutoff: float) -> NDArray[np.bool_]:
    """Tell which logits are at or above `cutoff`; rounding may let one more in, never one less."""
    if cutoff < np.finfo(np.float32).min:
        return np.ones(len(logits), dtype=np.bool_)
    rounded_down: np.float32 = np.nextafter(np.float32(cutoff), np.float32(-np.inf))
    return logits >= rounded_down


def top_columns(logits: FloatArray, num_columns: int) -> IntArray:
    """Return the first `num_columns` columns of the ranking, ascending."""
    if num_columns >= len(logits):
        return np.arange(len(logits))
    if num_columns == 0:
        return np.arange(0)
    # The k-th largest maximum of disjoint groups is a floor under the k-th largest logit: k groups
    # hold a logit each that is no smaller. Few logits pass it, and only they are partitioned.
    width = max(1, len(logits) // (8 * num_columns))
    num_groups = len(logits) // width
    maxima = logits[: width * num_groups].reshape(width, num_groups).max(axis=0)
    pool = logits[logits >= _kth_largest(maxima, num_columns)]
    return _head(logits, float(_kth_largest(pool, num_columns)), num_columns)


def surviving_columns(logits: FloatArray, best: float, rule: PickRule) -> IntArray:
    """Return the columns that top-k, top-p and min-p leave, ascending.

    `best` is the maximum of `logits`; a best token always survives.
    """
    columns: IntArray | None = None
    if 0 < rule.top_k < len(logits):
        columns = top_columns(logits, rule.top_k)
    if rule.top_p < 1:
        kept = _top_p_columns(_take(logits, columns), best, rule.temperature, rule.top_p)
        columns = kept if columns is None else columns[kept]
    if rule.min_p > 0:
        kept = _min_p_columns(_take(logits, columns), best, rule.temperature, rule.min_p)
        columns = kept if columns is None else columns[kept]
    return np.arange(len(logits)) if columns is None else columns


def _top_p_columns(logits: FloatArray, best: float, temperature: float, top_p: float) -> IntArray:
    mass = top_p * float(relative_probs(logits, best, temperature).sum())
    # Probability sits near the top: sort only that part, and look further down only when it is
    # not enough. Each attempt sorts a head of the same ranking, so all give the same answer.
    for reach in _TOP_P_RANGES:
        near = np.sort(logits[at_least(logits, best - reach * temperature)])[::-1]
        reached = np.cumsum(relative_probs(near, best, temperature))
        if reached[-1] >= mass:
            break
    num_kept = min(int(np.searchsorted(reached, mass)) + 1, len(near))  # who reaches it stays
    return _head(logits, float(near[num_kept - 1]), num_kept)


def _min_p_columns(logits: FloatArray, best: float, temperature: float, min_p: float) -> IntArray:
    # Slack for the logarithm, so that the comparison below alone decides.
    columns = np.flatnonzero(at_least(logits, best + temperature * (math.log(min_p) - 1e-6)))
    return columns[relative_probs(logits[columns], best, temperature) >= min_p]


def _head(logits: FloatArray, last: float, num_columns: int) -> IntArray:
    """Return the first `num_columns` columns of the ranking; the last of them has logit `last`."""
    columns = np.flatnonzero(logits > last)
    if len(columns) == num_columns:
        return columns
    equal = np.flatnonzero(logits == last)
    return np.sort(np.concatenate([columns, equal[: num_columns - len(columns)]]))


def _kth_largest(values: FloatArray, k: int) -> np.float32:
    index = len(values) - k
    kth: np.float32 = np.partition(values, index)[index]
    return kth


def _take(logits: FloatArray, columns: IntArray | None) -> FloatArray:
    return logits if columns is None else logits[columns]
