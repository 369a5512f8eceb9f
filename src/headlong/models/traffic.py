"""What a pass reads of memory: the weights once, and what its sequences have in their caches.

In:  a backbone. Out: bytes of weights a pass, and how much sequences add to that by their lengths.
Decoding waits for memory, so this says what a pass over long contexts costs beside one over short
ones before either was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attending, Linear
from headlong.ops.layer_state import has_positions


@dataclass(frozen=True, slots=True)
class CacheTraffic:
    """What sequences read of their states in a pass, against the weights."""

    by_window: tuple[tuple[int | None, float], ...]
    """How far layers look back (None: to the start), and what a position costs in all of these."""
    per_sequence: float = 0.0
    """What recurrent states cost, which are read and written whole whatever a length is."""

    def share(self, lengths: Sequence[int]) -> float:
        """Return what sequences of these lengths add to a pass, as a share of the weights."""
        by_position = sum(
            price * sum(lengths if window is None else [min(window, one) for one in lengths])
            for window, price in self.by_window
        )
        return by_position + self.per_sequence * len(lengths)


def cache_traffic(backbone: Backbone) -> CacheTraffic:
    """Return what reading caches adds to the passes of a backbone."""
    num_bytes: dict[int | None, int] = {}
    recurrent_bytes = 0
    for layer, state in zip(backbone.layers, backbone.make_cache().layers, strict=True):
        if state is None:
            continue
        if has_positions(state):
            # One that reads what another layer keeps reads as much as that one.
            window = layer.mixer.window if isinstance(layer.mixer, Attending) else None
            num_bytes[window] = num_bytes.get(window, 0) + state.bytes_per_position
        else:
            recurrent_bytes += 2 * state.num_bytes
    weights = pass_bytes(backbone)
    by_window = tuple((window, size / weights) for window, size in num_bytes.items())
    return CacheTraffic(by_window, recurrent_bytes / weights)


def pass_bytes(backbone: Backbone) -> int:
    """Return the bytes of weights one pass reads; an embedding is read a row at a time only."""
    linears = [linear for layer in backbone.layers for linear in layer.linears]
    if backbone.per_layer is not None:
        linears.append(backbone.per_layer.projection)
    return bytes_of([backbone.lm_head, *linears])


def bytes_of(linears: Sequence[Linear]) -> int:
    """Return the bytes of the weights of some projections, as they lie in memory."""
    return sum(_matrix_bytes(linear.weight) for linear in linears)


def _matrix_bytes(matrix: Any) -> int:
    return int(matrix.num_bytes if hasattr(matrix, "num_bytes") else matrix.values.nbytes)
