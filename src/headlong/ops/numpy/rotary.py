"""Rotary positions in numpy."""

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops.blocks import Rope


def rotate(heads: FloatArray, positions: IntArray, rope: Rope) -> FloatArray:
    """Turn the leading dimension pairs of every head by its row's position: (N, heads, D)."""
    half = len(rope.frequencies)
    angles = positions[:, None, None] * rope.frequencies.astype(np.float64)  # (N, 1, R / 2)
    cos, sin = (
        (rope.amplitude * turned).astype(np.float32) for turned in (np.cos(angles), np.sin(angles))
    )
    low, high, rest = np.split(heads, [half, 2 * half], axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)
