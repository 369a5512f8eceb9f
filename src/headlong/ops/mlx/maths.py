"""The small maths between matrix products in MLX, and which of it is fused.

In:  rows of activations. Out: rows, computed in float32 and rounded to the type they came in.
On Metal each function is compiled once for all shapes and becomes one kernel where it can. On the
CPU, where MLX would call a C++ compiler for that, it stays as it is.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from headlong.ops.blocks import Activation
from headlong.ops.mlx.host import is_on_metal


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that works number by number as one kernel, where that is free."""
    return mx.compile(function, shapeless=True) if is_on_metal() else function


def silu(x: Any) -> Any:
    """Return x times its sigmoid."""
    return x * mx.sigmoid(x)


def gelu_tanh(x: Any) -> Any:
    """Return the tanh form of GELU."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + mx.tanh(inner))


def relu_squared(x: Any) -> Any:
    """Return the square of x where it is positive, 0 elsewhere."""
    return mx.square(mx.maximum(x, 0))


def softplus(x: Any) -> Any:
    """Return log(1 + exp(x))."""
    return mx.logaddexp(x, mx.zeros_like(x))


_ACTIVATIONS: Mapping[Activation, Callable[[Any], Any]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "relu_squared": relu_squared,
}


def _activated(activate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return fused(lambda x: activate(x.astype(mx.float32)).astype(x.dtype))


def _gated(activate: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return fused(lambda gate, up: (activate(gate.astype(mx.float32)) * up).astype(up.dtype))


ACTIVATIONS = {name: _activated(activate) for name, activate in _ACTIVATIONS.items()}
"""The activations alone."""

GATES = {name: _gated(activate) for name, activate in _ACTIVATIONS.items()}
"""activation(gate) * up of a gated MLP."""


@fused
def gate_by_sigmoid(x: Any, gate: Any) -> Any:
    """Multiply by the sigmoid of a gate."""
    return (x * mx.sigmoid(gate.astype(mx.float32))).astype(x.dtype)


@fused
def _turn(first: Any, second: Any, cos: Any, sin: Any) -> Any:
    return (first * cos - second * sin).astype(first.dtype)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Turn the first R dimensions of every head, half by half: (N, heads, D) by (N, 1, R / 2)."""
    half = cos.shape[-1]
    if not half:
        return x
    first, second, rest = mx.split(x, [half, 2 * half], axis=-1)
    turned = [_turn(first, second, cos, sin), _turn(second, first, cos, -sin)]
    return mx.concatenate([*turned, rest] if rest.shape[-1] else turned, axis=-1)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """Divide by the root mean square of the last dimension and scale: (N, …, H)."""
    if x.dtype == mx.float32:
        return mx.fast.rms_norm(x, weight, eps)
    return mx.fast.rms_norm(x.astype(mx.float32), weight, eps).astype(x.dtype)
