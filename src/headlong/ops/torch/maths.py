"""The small maths between matrix products in torch, plain or fused by torch.compile.

In:  rows of activations. Out: rows, computed in float32 and rounded to the type they came in.
`make_row_maths(compile=False)` is the plain truth; the compiled set computes the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import Activation

Angles = tuple[Tensor, Tensor]
"""Cosines and sines of the rows' rotary positions, (N, D / 2) each."""


@dataclass(frozen=True, slots=True)
class RowMaths:
    """The functions that blocks are made of, besides projections and attention."""

    rms_norm: Callable[..., Any]
    rotate: Callable[..., Any]
    gates: Mapping[Activation, Callable[..., Any]]
    """activation(gate) * up of a gated MLP, from both side by side."""


def make_row_maths(*, compile: bool) -> RowMaths:
    """Return the functions, fused where asked for."""
    gates = {name: partial(_gate, activate=activate) for name, activate in ACTIVATIONS.items()}
    norm, turn, *fused = fuse(rms_norm, rotate, *gates.values(), compile=compile)
    return RowMaths(norm, turn, dict(zip(gates, fused, strict=True)))


def fuse(*functions: Callable[..., Any], compile: bool) -> list[Callable[..., Any]]:
    """Return the functions, each compiled to one kernel where asked for."""
    if not compile:
        return list(functions)
    # Sequence lengths, row counts and grad modes each compile once; the default limit of 8 is less.
    torch._dynamo.config.recompile_limit = 64
    # A norm's epsilon is a constant; as an input it might be copied to the device inside a graph.
    torch._dynamo.config.specialize_float = True
    return [torch.compile(function, dynamic=True) for function in functions]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square of the last dimension and scale: (N, …, H)."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first R dimensions of every head, half by half: (N, heads, D) by (N, R / 2)."""
    half = cos.shape[-1]
    first, second, rest = x.float().split([half, half, x.shape[-1] - 2 * half], -1)
    cos, sin = cos[:, None], sin[:, None]
    turned = [first * cos - second * sin, second * cos + first * sin, rest]
    return torch.cat(turned, -1).to(x.dtype)


def relu_squared(x: Tensor) -> Tensor:
    """Return the square of x where it is positive, 0 elsewhere."""
    return F.relu(x).square()


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu_squared": relu_squared,
}


def _gate(gate_up: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
    """Return activation(gate) * up: (N, 2 I) → (N, I)."""
    gate, up = gate_up.chunk(2, -1)
    return activate(gate) * up
