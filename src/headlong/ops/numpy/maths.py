"""Activations in numpy, number by number."""

from collections.abc import Callable, Mapping

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.blocks import Activation


def sigmoid(x: FloatArray) -> FloatArray:
    """Return 1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        return np.divide(np.float32(1), np.float32(1) + np.exp(-x), dtype=np.float32)


def silu(x: FloatArray) -> FloatArray:
    """Return x times its sigmoid."""
    # exp of a very negative gate is inf, and x / inf is the 0 meant
    with np.errstate(over="ignore"):
        return np.divide(x, np.float32(1) + np.exp(-x), dtype=np.float32)


def gelu_tanh(x: FloatArray) -> FloatArray:
    """Return the tanh form of GELU."""
    inner: FloatArray = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    activated = np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))
    return activated.astype(np.float32, copy=False)  # it is; the stubs do not know


def relu_squared(x: FloatArray) -> FloatArray:
    """Return the square of x where it is positive, 0 elsewhere."""
    squared: FloatArray = np.square(np.maximum(x, np.float32(0)))
    return squared


ACTIVATIONS: Mapping[Activation, Callable[[FloatArray], FloatArray]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "relu_squared": relu_squared,
}
