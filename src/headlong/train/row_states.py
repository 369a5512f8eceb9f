"""Row states: the layer states of all rows of a sampler.

In:  a teacher's layers; prompts' states from a pass over whole sequences; one new token per row.
Out: the hidden rows after each layer. For every row, attention has a cache of `capacity` positions
and a recurrence has one state. All updates are in place, so that a CUDA graph can replay a step.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from headlong.ops.blocks import Rope, SharedAttention
from headlong.ops.recurrent_state import Recurrence, RecurrentRows, Step
from headlong.ops.torch.attention import AttendRows, AttentionShape, attention_shape
from headlong.ops.torch.maths import Angles
from headlong.ops.torch.sequences import (
    KeepState,
    RowReading,
    add_read,
    empty_recurrence,
    read_heads,
)
from headlong.train.teacher import Teacher


class RowStates:
    """The states of all layers and rows."""

    def __init__(self, teacher: Teacher, num_rows: int, capacity: int, attend: AttendRows) -> None:
        self._teacher = teacher
        self._attend = attend
        self._rows = torch.arange(num_rows, device=teacher.device)
        self._caches: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values by layer: (rows, kv_heads, capacity, D)."""
        self._recurrences: dict[int, Recurrence] = {}
        self._shapes: dict[int, AttentionShape] = {}
        for index, layer in enumerate(teacher.backbone.layers):
            mixer = layer.mixer
            if isinstance(mixer, RowReading):
                self._shapes[index] = attention_shape(mixer)
            if isinstance(mixer, SharedAttention):
                self._caches[index] = self._caches[mixer.source]
            elif isinstance(mixer, RowReading):
                self._caches[index] = self._empty_cache(self._shapes[index], num_rows, capacity)
            elif mixer is not None:
                self._recurrences[index] = empty_recurrence(mixer, num_rows, teacher.device)

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers and rows; a cache shared by layers is counted once."""
        parts = [*self._caches.values(), *self._recurrences.values()]
        tensors = {part.data_ptr(): part.nbytes for state in parts for part in state}
        return sum(tensors.values())

    def loader(self, rows: Tensor) -> KeepState:
        """Return a function that stores the states of whole sequences in the given rows."""
        return partial(self._load, rows)

    def mix(
        self,
        x: Tensor,
        index: int,
        angles: Mapping[Rope, Angles],
        positions: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        """Run the mixer of one layer over the newest token of every row: (N, H)."""
        mixer = self._teacher.backbone.layers[index].mixer
        if mixer is None:
            return x
        ops = self._teacher.ops
        if not isinstance(mixer, RowReading):
            return x + ops.recurrence(mixer).result(ops, x, partial(self._update, index))
        heads = read_heads(ops, x, mixer, angles[mixer.rope])
        keys, values = self._caches[index]
        if not isinstance(mixer, SharedAttention):
            keys[self._rows, :, positions] = heads.key
            values[self._rows, :, positions] = heads.value
        query = heads.query.contiguous()
        attended = self._attend(query, keys, values, lengths, self._shapes[index])
        return add_read(ops, x, attended.view(len(x), -1), mixer, heads.gate)

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Restore recurrent states at the end; caches need not be: entries are overwritten."""
        saved = {i: [part.clone() for part in state] for i, state in self._recurrences.items()}
        yield
        for index, parts in saved.items():
            for part, original in zip(self._recurrences[index], parts, strict=True):
                part.copy_(original)

    def _empty_cache(
        self, shape: AttentionShape, num_rows: int, capacity: int
    ) -> tuple[Tensor, Tensor]:
        like = {"device": self._teacher.device, "dtype": self._teacher.ops.dtype}
        sizes = (num_rows, shape.num_kv_heads, capacity)
        keys = torch.zeros(*sizes, shape.head_dim, **like)
        return keys, torch.zeros(*sizes, shape.value_dim, **like)

    def _load(self, rows: Tensor, layer: int, first: Tensor, second: Tensor) -> None:
        if layer in self._recurrences:
            memory, window = self._recurrences[layer]
            memory[rows], window[:, rows] = first, second
            return
        for cache, new in zip(self._caches[layer], (first, second), strict=True):
            cache[rows, :, : new.shape[2]] = new

    def _update(self, index: int, projected: RecurrentRows, step: Step) -> Tensor:
        state = self._recurrences[index]
        new, read = step(state, projected)
        for part, values in zip(state, new, strict=True):
            part.copy_(values)
        result: Tensor = read
        return result
