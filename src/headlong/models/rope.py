"""Rotary frequencies: how fast each dimension pair turns with the position."""

import math

import numpy as np

from headlong.arrays import FloatArray
from headlong.errors import TensorError
from headlong.models.model_config import RopeScaling
from headlong.ops.blocks import Rope


def make_rope(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Rope:
    """Return the frequencies theta ** (-2i / head_dim), stretched where the model says so."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    frequencies = theta**-exponents
    if scaling is not None:
        frequencies = _stretch(frequencies, scaling)
    return Rope(frequencies.astype(np.float32))


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
    return Rope((rope.frequencies / divisors).astype(np.float32))


def _stretch(
    frequencies: "np.ndarray[tuple[int], np.dtype[np.float64]]", scaling: RopeScaling
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # llama3: leave fast pairs alone, slow ones turn `factor` times slower, a ramp in between.
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_context_length / wavelengths
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept_share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept_share + (1 - kept_share) / scaling.factor)
