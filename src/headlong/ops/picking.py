"""The two steps of picking a token that are worth compiling, where the kernels are built.

In:  a row of logits. Out: the winner of a race with noise; how much probability a row holds.
`HAS_KERNELS` says whether they can be called; `decode` keeps the numpy versions, which define the
results. A race has the same winner either way, up to the last bit of a logarithm.
"""

import numpy as np

from headlong.arrays import FloatArray, IntArray

try:
    from headlong.ops import _native
except ImportError:
    HAS_KERNELS = False
else:
    HAS_KERNELS = True


def race(
    logits: FloatArray, token_ids: IntArray | None, best: float, temperature: float, key: int
) -> int:
    """Return the column with the largest scaled logit plus noise, the lowest one among equals."""
    return _native.race(np.ascontiguousarray(logits), token_ids, best, temperature, key)


def sum_relative(logits: FloatArray, best: float, temperature: float) -> float:
    """Return Σ e^((logit - best) / temperature), to six digits."""
    return _native.sum_relative(np.ascontiguousarray(logits), best, temperature)
