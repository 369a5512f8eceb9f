"""Parts of blocks: matrices, norms, projections and rotary positions."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from headlong.arrays import FloatArray

Matrix: TypeAlias = Any
"""A weight matrix (outputs, inputs) in whatever form its backend packs it; opaque to others."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Norm:
    """Root-mean-square norm with a learned scale."""

    weight: FloatArray  # (H,)
    eps: float


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Linear:
    """A projection, with a bias where the architecture has one."""

    weight: Matrix  # (outputs, inputs)
    bias: FloatArray | None = None  # (outputs,)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Rope:
    """Rotary positions: of the first R dimensions, pairs (i, i + R/2) turn by position × frequency.

    The other dimensions of a head, if there are any, stay as they are. Without frequencies heads
    do not turn at all (Nemotron).
    """

    frequencies: FloatArray  # (R // 2,), R at most the head size
    amplitude: float = 1.0
    """Multiplies the dimensions that turn (YaRN)."""
