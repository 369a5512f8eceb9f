"""Rotary frequencies: how fast each dimension pair turns with the position."""

import math
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from headlong.arrays import FloatArray
from headlong.errors import TensorError
from headlong.models.rope_scaling import RopeScaling
from headlong.ops.blocks import Rope

_Frequencies: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"


def make_rope(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Rope:
    """Return the frequencies theta ** (-2i / head_dim), stretched where the model says so."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    frequencies = theta**-exponents
    if scaling is None:
        return Rope(frequencies.astype(np.float32))
    return Rope(_stretch(frequencies, scaling).astype(np.float32), scaling.amplitude)


def make_proportional_rope(
    head_dim: int, theta: float, share: float, scaling: RopeScaling | None
) -> Rope:
    """Return frequencies of which the leading share is as usual and the others are 0 (Gemma 4)."""
    rope = make_rope(head_dim, theta, scaling)
    frequencies = rope.frequencies.copy()
    frequencies[int(share * head_dim // 2) :] = 0
    return Rope(frequencies)


def divide_rope(rope: Rope, divisors: FloatArray) -> Rope:
    """Apply the per-frequency divisors that Llama-3 GGUF files carry as `rope_freqs.weight`."""
    if (divisors <= 0).any():
        raise TensorError(
            f"rope_freqs.weight divides rotary frequencies by {divisors.min()}.",
            "Its numbers must be above 0; the file is damaged, pull the model again.",
        )
    return replace(rope, frequencies=(rope.frequencies / divisors).astype(np.float32))


def _stretch(frequencies: _Frequencies, scaling: RopeScaling) -> _Frequencies:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # Leave fast pairs alone, slow ones turn `factor` times slower, a ramp in between.
    turns = scaling.original_context_length * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if scaling.kind == "llama3":
        kept_share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    else:
        kept_share = _yarn_ramp(turns, scaling)
    return frequencies * (kept_share + (1 - kept_share) / scaling.factor)


def _yarn_ramp(turns: _Frequencies, scaling: RopeScaling) -> _Frequencies:
    """Return the ramp over pairs by their number, between those that turn so and so often."""
    steps = np.log(turns[:1] / turns[1:2]).sum()  # from pair to pair, in logarithms of turns
    if not steps > 0:
        return np.ones_like(turns)  # all pairs turn alike, or there is only one
    bounds = np.array([scaling.high_frequency_factor, scaling.low_frequency_factor])
    first, last = np.log(turns[0] / bounds) / steps
    if scaling.is_ramp_whole:
        first, last = np.floor(first), np.ceil(last)
    first, last = max(first, 0.0), min(last, 2.0 * len(turns) - 1)
    width = last - first if last > first else 0.001
    share: _Frequencies = 1 - np.clip((np.arange(len(turns)) - first) / width, 0.0, 1.0)
    return share
