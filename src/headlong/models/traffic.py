"""What a pass reads of memory: the weights once, and what its sequences have in their caches.

In:  a backbone. Out: bytes of weights a pass, and how much sequences add to that by their lengths.
Decoding waits for memory, so this says what a pass over long contexts costs beside one over short
ones before either was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headlong.models.transformer import Backbone, Layer
from headlong.ops.op_set import Linear


@dataclass(frozen=True, slots=True)
class CacheTraffic:
    """Keys and values that sequences read in a pass, against the weights."""

    by_window: tuple[tuple[int | None, float], ...]
    """How far layers look back (None: to the start), and what a position costs in all of these."""

    def share(self, lengths: Sequence[int]) -> float:
        """Return what sequences of these lengths add to a pass, as a share of the weights."""
        return sum(
            price * sum(lengths if window is None else [min(window, one) for one in lengths])
            for window, price in self.by_window
        )


def cache_traffic(backbone: Backbone) -> CacheTraffic:
    """Return what reading caches adds to the passes of a backbone."""
    num_bytes: dict[int | None, int] = {}
    for layer, cached in zip(backbone.layers, backbone.make_cache().layers, strict=True):
        window = layer.attention.window
        num_bytes[window] = num_bytes.get(window, 0) + cached.bytes_per_position
    weights = pass_bytes(backbone)
    return CacheTraffic(tuple((window, size / weights) for window, size in num_bytes.items()))


def pass_bytes(backbone: Backbone) -> int:
    """Return the bytes of weights one pass reads; an embedding is read a row at a time only."""
    linears = [linear for layer in backbone.layers for linear in linears_of(layer)]
    return bytes_of([backbone.lm_head, *linears])


def linears_of(layer: Layer) -> list[Linear]:
    """Return the projections of a layer."""
    attention, mlp = layer.attention, layer.mlp
    projections = [attention.query, attention.key, attention.value, attention.output]
    return [*projections, mlp.gate, mlp.up, mlp.down]


def bytes_of(linears: Sequence[Linear]) -> int:
    """Return the bytes of the weights of some projections, as they lie in memory."""
    return sum(_matrix_bytes(linear.weight) for linear in linears)


def _matrix_bytes(matrix: Any) -> int:
    return int(matrix.num_bytes if hasattr(matrix, "num_bytes") else matrix.values.nbytes)
