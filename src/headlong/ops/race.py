"""Race: find the token with the largest scaled logit plus noise, without adding up all of them.

In:  a row of logits, its maximum, the temperature, a noise key. Out: the winning column.
The result is argmax(scale(logits) + gumbel) over the whole row, exactly; only the work is less.
Noise is bounded, and a hash comparison tells whether a token's noise can be large enough, so
logarithms are taken for a handful of tokens. Knows nothing of filters or history.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray, IntArray
from headlong.ops.filters import at_least, scale
from headlong.ops.noise import MAX_GUMBEL, bits_reaching, gumbel_of, noise_bits

_NEAR = 8.0
"""Tokens whose scaled logit is within this of the best one are looked at first."""

_NUM_PROBES = 1024
"""So many near tokens are added up for a first bound; rows up to this length are simply summed."""

_BLOCK = 8192
"""Tokens hashed at once: their words stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Field:
    """The tokens that take part in one race."""

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


def race(field: Field, key: int) -> int:
    """Return the column with the largest score, the lowest one among equals."""
    if len(field.logits) <= _NUM_PROBES:
        return int(field.scores(np.arange(len(field.logits)), key).argmax())
    near = np.flatnonzero(at_least(field.logits, field.best - _NEAR * field.temperature))
    bound = float(field.scores(near[:_NUM_PROBES], key).max())
    # No scaled logit is above 0, so a near token needs noise of at least `bound` to win, and any
    # other one _NEAR more than that. Who cannot have so much has lost.
    columns = _having_noise(field, near, bound, key)
    reach = field.best + (bound - MAX_GUMBEL) * field.temperature
    in_reach = np.flatnonzero(at_least(field.logits, reach))
    if len(in_reach) > len(near):
        far = _having_noise(field, in_reach, bound + _NEAR, key)
        columns = np.concatenate([columns, far])
    scores = field.scores(columns, key)
    return int(columns[scores == scores.max()].min())


def _having_noise(field: Field, columns: IntArray, noise: float, key: int) -> IntArray:
    """Return the `columns` whose noise may be as large as `noise`."""
    needed = bits_reaching(noise)
    found = []
    for start in range(0, len(columns), _BLOCK):
        block = columns[start : start + _BLOCK]
        found.append(block[noise_bits(key, field.ids(block)) >= needed])
    return np.concatenate(found)
