"""Noise: one Gumbel number for every (seed, position, token id), without any state.

In:  a seed, an absolute position, token ids. Out: float64 noise, which drafter and backbone share.
Knows nothing of logits or sampling parameters.

The recipe, for a twin in another language (all integers are unsigned 64-bit and wrap around):

    golden  = 0x9E3779B97F4A7C15
    mix(x)  : x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB;
              x ^= x >> 31                                     (the finaliser of splitmix64)
    key     = mix(mix(seed + golden) + golden * (position + 1))
    bits    = mix(key + golden * (token_id + 1))
    u       = ((bits >> 12) + 0.5) * 2**-52                    (exact; 2**-53 <= u <= 1 - 2**-53)
    gumbel  = -log(-log(u))                                    (float64)

52 bits and not 53: adding 0.5 to a 53-bit integer is not exact in float64, and the largest would
round to u = 1, an infinite gumbel. `u` is the same everywhere; the logarithms are as good as the
machine's, so twins may differ in the last bit or two.
"""

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import IntArray

BitsArray: TypeAlias = NDArray[np.uint64]
"""Hashed bits, one word per token; larger bits mean larger noise."""

MIN_GUMBEL = -math.log(53 * math.log(2))
"""The smallest noise there is, about -3.60."""

MAX_GUMBEL = 53 * math.log(2)
"""The largest noise there is, about 36.74."""

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def gumbel(seed: int, position: int, token_ids: IntArray) -> NDArray[np.float64]:
    """Return the noise of `token_ids` at `position`."""
    return gumbel_of(noise_bits(noise_key(seed, position), token_ids))


def noise_key(seed: int, position: int) -> int:
    """Return what the noise of all tokens at one position has in common."""
    return _mix((noise_stream(seed) + _GOLDEN * (position + 1)) & _WORD)


def noise_stream(seed: int) -> int:
    """Return what the noise of all positions of one seed has in common."""
    return _mix((seed + _GOLDEN) & _WORD)


def noise_bits(key: int, token_ids: IntArray) -> BitsArray:
    """Return the hashed bits of `token_ids`; `key` comes from `noise_key`."""
    bits = token_ids.astype(np.uint64)  # a copy: the rest works in place
    bits += np.uint64(1)
    bits *= np.uint64(_GOLDEN)
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_SECOND)
    bits ^= bits >> np.uint64(31)
    return bits


def gumbel_of(bits: BitsArray) -> NDArray[np.float64]:
    """Turn hashed bits into noise."""
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def bits_reaching(noise: float) -> np.uint64:
    """Return bits that every token with at least this much noise reaches.

    A token below them has less noise for certain; a token above has it almost certainly. That makes
    one integer comparison enough to dismiss nearly all tokens before any logarithm is taken.
    """
    if noise <= MIN_GUMBEL:
        return np.uint64(0)
    # The slack is far above every rounding error here and lets about 0.1 % more tokens through.
    tail = -math.expm1(-math.exp(-(noise - 1e-3)))  # 1 - u
    num_steps = min(math.ceil(tail * 2.0**52) + 1, 2**52)
    return np.uint64((2**52 - num_steps) << 12)


def _mix(word: int) -> int:
    word ^= word >> 30
    word = word * _FIRST & _WORD
    word ^= word >> 27
    word = word * _SECOND & _WORD
    return word ^ word >> 31
