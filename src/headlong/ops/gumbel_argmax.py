"""Gumbel argmax: the token with the largest scaled logit plus noise, mostly without computing it.

In:  a row of logits, its maximum, the temperature, a noise key. Out: a column.
The result is exactly argmax(scale(logits) + gumbel) over the whole row. The noise is bounded, and
a comparison of hashes shows which tokens can have enough of it, so logarithms are computed for a
few tokens only. Knows nothing of filters or history.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray, IntArray
from headlong.ops.filters import at_least, scale
from headlong.ops.noise import MAX_GUMBEL, bits_reaching, gumbel_of, noise_bits

_NEAR = 8.0
"""Tokens whose scaled logit is within this of the best one are examined first."""

_NUM_PROBES = 1024
"""Near tokens that are computed for a first bound; rows up to this length are computed fully."""

_BLOCK = 8192
"""Tokens hashed at once: their hashes fit in the processor's cache."""


@dataclass(frozen=True, slots=True)
class LogitsRow:
    """The logits of one position, all or some of them."""

    logits: FloatArray  # (n,)
    token_ids: IntArray | None  # (n,), None when a column is its own token id
    best: float
    """The maximum of `logits`, finite."""
    temperature: float

    def ids(self, columns: IntArray) -> IntArray:
        """Return the token ids of `columns`."""
        return columns if self.token_ids is None else self.token_ids[columns]

    def scores(self, columns: IntArray, key: int) -> NDArray[np.float64]:
        """Return scaled logit plus noise of `columns`."""
        scaled = scale(self.logits[columns], self.best, self.temperature)
        scaled += gumbel_of(noise_bits(key, self.ids(columns)))
        return scaled


def gumbel_argmax(row: LogitsRow, key: int) -> int:
    """Return the column with the largest score, the lowest one among equals."""
    if len(row.logits) <= _NUM_PROBES:
        return int(row.scores(np.arange(len(row.logits)), key).argmax())
    near = np.flatnonzero(at_least(row.logits, row.best - _NEAR * row.temperature))
    bound = float(row.scores(near[:_NUM_PROBES], key).max())
    # No scaled logit is above 0, so a near token needs noise of at least `bound` to win, and any
    # other one _NEAR more than that. Tokens with less noise are ruled out.
    columns = _having_noise(row, near, bound, key)
    reach = row.best + (bound - MAX_GUMBEL) * row.temperature
    in_reach = np.flatnonzero(at_least(row.logits, reach))
    if len(in_reach) > len(near):
        far = _having_noise(row, in_reach, bound + _NEAR, key)
        columns = np.concatenate([columns, far])
    scores = row.scores(columns, key)
    return int(columns[scores == scores.max()].min())


def _having_noise(row: LogitsRow, columns: IntArray, noise: float, key: int) -> IntArray:
    """Return the `columns` whose noise may be as large as `noise`."""
    needed = bits_reaching(noise)
    found = []
    for start in range(0, len(columns), _BLOCK):
        block = columns[start : start + _BLOCK]
        found.append(block[noise_bits(key, row.ids(block)) >= needed])
    return np.concatenate(found)
