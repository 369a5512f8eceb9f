"""Memory traffic of a pass: the bytes of weights and of caches that it reads.

In:  a backbone. Out: bytes of weights per pass, and bytes of caches by the lengths of sequences.
Of experts a pass reads only those that its rows are routed to.
Decoding is limited by memory bandwidth, so these bytes predict the cost of passes over long
contexts before any was measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attending, Experts, Layer, Linear
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


def pass_bytes(backbone: Backbone, num_rows: int = 1) -> int:
    """Return the bytes of weights a pass reads; an embedding is read a row at a time only."""
    frame = [backbone.lm_head]
    if backbone.per_layer is not None:
        frame.append(backbone.per_layer.projection)
    return bytes_of(frame) + sum(layer_bytes(layer, num_rows) for layer in backbone.layers)


def layer_bytes(layer: Layer, num_rows: int = 1) -> int:
    """Return the bytes of weights a pass reads of one layer, of experts as many as are expected."""
    every = bytes_of(layer.linears)
    if not isinstance(layer.channel, Experts):
        return every
    experts = layer.channel.experts
    share_idle = 1 - expected_experts(layer.channel, num_rows) / len(experts)
    return every - round(share_idle * bytes_of([one for e in experts for one in e.linears]))


def expected_experts(mixture: Experts, num_rows: int) -> float:
    """Return how many experts a pass is expected to read, were all of them chosen equally often.

    In truth rows that follow one another share some, so that passes read less.
    """
    num_experts = len(mixture.experts)
    return num_experts * (1 - (1 - mixture.router.num_chosen / num_experts) ** num_rows)


def held_bytes(backbone: Backbone) -> int:
    """Return the bytes of all weights in memory."""
    linears = [linear for layer in backbone.layers for linear in layer.linears]
    tables = [] if backbone.embedding is backbone.lm_head.weight else [Linear(backbone.embedding)]
    if backbone.per_layer is not None:
        tables += [Linear(backbone.per_layer.table), backbone.per_layer.projection]
    return bytes_of([*linears, backbone.lm_head, *tables])


def idle_parameters(backbone: Backbone) -> int:
    """Return how many parameters belong to experts that a row does not go through."""
    idle = 0.0
    for layer in backbone.layers:
        if isinstance(layer.channel, Experts):
            linears = [linear for one in layer.channel.experts for linear in one.linears]
            share = 1 - layer.channel.router.num_chosen / len(layer.channel.experts)
            idle += share * sum(_num_weights(linear.weight) for linear in linears)
    return round(idle)


def bytes_of(linears: Sequence[Linear]) -> int:
    """Return the bytes of the weights of some projections, as they lie in memory."""
    return sum(_matrix_bytes(linear.weight) for linear in linears)


def _matrix_bytes(matrix: Any) -> int:
    return int(matrix.num_bytes if hasattr(matrix, "num_bytes") else matrix.values.nbytes)


def _num_weights(matrix: Any) -> int:
    return math.prod(matrix.shape if hasattr(matrix, "shape") else matrix.values.shape)
