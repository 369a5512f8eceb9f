"""Whole sequences through layers of any kind, from position 0 and without a cache.

In:  rows of sequences of one length, and the layers. Out: rows in the same order; on the side the
     state that every layer would have at the end, which is how a prompt enters a cache.
How training reads answers: all rows together, so the last bits of a row may depend on its mates.
Attention sees all rows of a sequence at once. Recurrences go row by row, all sequences together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from headlong.ops.blocks import (
    Attending,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mamba2,
    Rope,
    SharedAttention,
)
from headlong.ops.recurrent_state import Recurrence, RecurrentRows, Step
from headlong.ops.torch.attention import HeadRows, attend_sequences, attention_shape
from headlong.ops.torch.latent import add_latent, latent_heads
from headlong.ops.torch.maths import Angles
from headlong.ops.torch.ops import TorchOps

RowReading: TypeAlias = Attending | LatentAttention
"""Mixers whose rows read earlier rows' keys and values."""

Recurrent: TypeAlias = GatedDeltaNet | Mamba2
"""Mixers whose rows read one state that every row replaces."""


class KeepState(Protocol):
    """Receives the states that a pass over whole sequences leaves."""

    def __call__(self, layer: int, first: Tensor, second: Tensor) -> None:
        """Take a layer's keys and values, (B, kv_heads, T, D), or a recurrence's two parts."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """How the rows of a pass are cut into sequences, and what becomes of their states."""

    length: int
    """Rows of each sequence."""
    beside: Tensor | None = None
    """(B * T, F) what the tokens bring along for every layer (`PerLayerInput`)."""
    keep: KeepState | None = None
    stops: Tensor | None = None
    """(B,) rows of each sequence that go into recurrent states; the others are padding."""


def run_sequences(
    ops: TorchOps,
    x: Tensor,
    layers: Sequence[Layer],
    sequences: Sequences,
    tap_layers: tuple[int, ...] = (),
) -> tuple[Tensor, Tensor | None]:
    """Run layers over whole sequences; return their rows and the tapped layers' inputs."""
    positions = torch.arange(sequences.length, device=x.device).repeat(len(x) // sequences.length)
    run = _Run(ops, sequences, angles_by_rope(ops, positions, layers), _sources(layers))
    tapped: dict[int, Tensor] = {}
    for index, layer in enumerate(layers):
        if index in tap_layers:
            tapped[index] = x
        if layer.mixer is not None:
            x = run.mix(x, index, layer.mixer)
        x = add_channels(ops, x, layer, sequences.beside)
    return x, torch.cat([tapped[i] for i in tap_layers], -1) if tap_layers else None


def angles_by_rope(ops: TorchOps, positions: Tensor, layers: Iterable[Layer]) -> dict[Rope, Angles]:
    """Return the angles of every kind of rotary positions that the layers use."""
    ropes = {layer.mixer.rope for layer in layers if isinstance(layer.mixer, RowReading)}
    return {rope: ops.angles(positions, rope) for rope in ropes}


def read_heads(ops: TorchOps, x: Tensor, mixer: RowReading, angles: Angles) -> HeadRows:
    """Return what rows ask with, and the keys and values that they can be read by."""
    if isinstance(mixer, LatentAttention):
        return latent_heads(ops, x, mixer, angles)
    return ops.project_heads(x, mixer, angles)


def add_read(
    ops: TorchOps, x: Tensor, attended: Tensor, mixer: RowReading, gate: Tensor | None
) -> Tensor:
    """Add to rows what their heads have read: (N, H), (N, heads * D) → (N, H)."""
    if isinstance(mixer, LatentAttention):
        return add_latent(ops, x, attended, mixer)
    return ops.add_attended(x, attended, mixer, gate)


def add_channels(ops: TorchOps, x: Tensor, layer: Layer, beside: Tensor | None) -> Tensor:
    """Run what follows the mixer of a layer: (N, H)."""
    for channel in (layer.channel, layer.second):
        if channel is not None:
            x = ops.transform(x, channel, beside)
    return x if layer.scale == 1.0 else x * layer.scale


def empty_recurrence(mixer: Recurrent, num_rows: int, device: torch.device) -> Recurrence:
    """Return the states of sequences without rows, side by side."""
    width, num_channels = mixer.convolution.shape
    memory = torch.zeros(num_rows, *mixer.memory_shape, device=device)
    return Recurrence(memory, torch.zeros(width - 1, num_rows, num_channels, device=device))


@dataclass(slots=True)
class _Run:
    """One pass."""

    ops: TorchOps
    sequences: Sequences
    angles: Mapping[Rope, Angles]
    sources: frozenset[int]
    shared: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Keys and values that later layers read as well."""

    def mix(self, x: Tensor, index: int, mixer: RowReading | Recurrent) -> Tensor:
        """Run the mixer of one layer."""
        if isinstance(mixer, RowReading):
            return self._attend(x, index, mixer)
        return x + self.ops.recurrence(mixer).result(
            self.ops, x, lambda rows, step: self._take_in(index, mixer, rows, step)
        )

    def _attend(self, x: Tensor, index: int, mixer: RowReading) -> Tensor:
        heads = read_heads(self.ops, x, mixer, self.angles[mixer.rope])
        query = self._by_sequence(heads.query)
        if isinstance(mixer, SharedAttention):
            key, value = self.shared[mixer.source]
        else:
            key, value = self._by_sequence(heads.key), self._by_sequence(heads.value)
            if index in self.sources:
                self.shared[index] = key, value
            if self.sequences.keep is not None:
                self.sequences.keep(index, key, value)
        attended = attend_sequences(query, key, value, attention_shape(mixer)).transpose(1, 2)
        return add_read(self.ops, x, attended.reshape(len(x), -1), mixer, heads.gate)

    def _by_sequence(self, rows: Tensor) -> Tensor:
        """Return heads of rows as heads of sequences: (N, heads, D) → (B, heads, T, D)."""
        return rows.view(-1, self.sequences.length, *rows.shape[1:]).transpose(1, 2)

    def _take_in(self, index: int, mixer: Recurrent, rows: RecurrentRows, step: Step) -> Tensor:
        """Take rows in, one of every sequence at a time; return what each reads: (N, …)."""
        length, stops = self.sequences.length, self.sequences.stops
        by_time = [part.view(-1, length, part.shape[-1]).unbind(1) for part in rows]
        state = empty_recurrence(mixer, len(by_time[0][0]), by_time[0][0].device)
        read: list[Tensor] = []
        for time, row in enumerate(zip(*by_time, strict=True)):
            new, found = step(state, RecurrentRows(*row))
            read.append(found)
            state = new if stops is None else _choose(stops > time, new, state)
        if self.sequences.keep is not None:
            self.sequences.keep(index, *state)
        return torch.stack(read, 1).flatten(0, 1)


def _choose(is_taken: Tensor, new: Recurrence, old: Recurrence) -> Recurrence:
    """Return the new state of some sequences and the old one of the others: (B,)."""
    memory = torch.where(is_taken[:, None, None, None], new.memory, old.memory)
    return Recurrence(memory, torch.where(is_taken[:, None], new.window, old.window))


def _sources(layers: Iterable[Layer]) -> frozenset[int]:
    mixers = (layer.mixer for layer in layers)
    return frozenset(mixer.source for mixer in mixers if isinstance(mixer, SharedAttention))
