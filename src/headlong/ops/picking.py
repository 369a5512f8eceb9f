"""The steps of picking a token that are worth compiling, where the kernels are built.

In:  a row of logits. Out: the token a rule picks; the columns that filters leave; the winner of a
race with noise; how much probability a row holds. `compiled.HAS_KERNELS` says whether they can be
called; `decode` keeps the numpy versions, which define the results. Choices are the same either
way, up to the last bit of a logarithm or a sum.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops import compiled

_WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class PickRule:
    """How a token is picked from logits that need no other adjustment; see `SamplingParams`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int

    def to_native(self) -> "compiled.native.PickRule":
        """Return the rule as the kernels take it."""
        return _translated(self)


@lru_cache(maxsize=256)
def _translated(rule: PickRule) -> "compiled.native.PickRule":
    seed = rule.seed & _WORD
    return compiled.native.PickRule(rule.temperature, rule.top_k, rule.top_p, rule.min_p, seed)


def pick(logits: FloatArray, rule: PickRule, position: int) -> int:
    """Return the token that a rule picks of bare logits; -1 when they have no finite maximum."""
    return compiled.native.pick(np.ascontiguousarray(logits), rule.to_native(), position)


def race(
    logits: FloatArray, token_ids: IntArray | None, best: float, temperature: float, key: int
) -> int:
    """Return the column with the largest scaled logit plus noise, the lowest one among equals."""
    return compiled.native.race(np.ascontiguousarray(logits), token_ids, best, temperature, key)


def surviving_columns(logits: FloatArray, best: float, rule: PickRule) -> IntArray:
    """Return the columns that the rule's filters leave, ascending."""
    return compiled.native.surviving_columns(np.ascontiguousarray(logits), best, rule.to_native())


def sum_relative(logits: FloatArray, best: float, temperature: float) -> float:
    """Return Σ e^((logit - best) / temperature), to six digits."""
    return compiled.native.sum_relative(np.ascontiguousarray(logits), best, temperature)
