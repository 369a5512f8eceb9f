"""Activations in numpy, number by number."""

import numpy as np

from headlong.arrays import FloatArray


def sigmoid(x: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        return np.divide(np.float32(1), np.float32(1) + np.exp(-x), dtype=np.float32)


def silu(x: FloatArray) -> FloatArray:
    """Return x times its sigmoid."""
    # exp of a very negative gate is inf, and x / inf is the 0 meant
    with np.errstate(over="ignore"):
        return np.divide(x, np.float32(1) + np.exp(-x), dtype=np.float32)
