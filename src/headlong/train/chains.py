"""Chains of drafts in training: which entries every row attends to at each depth.

Every start row t of a sequence starts a chain. The first step runs over the true states of all
rows, later steps only over start rows: a prompt starts no chains. At step k the chain of row t has
position t + k. As in drafting, it attends to the first-step entries up to t and to its own entries
of the later steps. Attention may have windows, sinks, values of another size than keys, or latent
vectors.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.arrays import IntArray
from headlong.ops.blocks import Rope
from headlong.ops.torch.attention import AttentionShape, attend_sequences
from headlong.ops.torch.maths import Angles
from headlong.ops.torch.ops import TorchOps
from headlong.train.pointwise import Pointwise

_GRID_STEP = 64
"""The start rows of a sequence are padded to a multiple of this, so that few shapes occur."""


class StartRows(NamedTuple):
    """The rows that chains start from, and their places in a grid of all sequences."""

    rows: Tensor  # (n,) flat indices
    places: Tensor  # (n,) places in the grid; padding goes behind it
    size: int
    """S, the places of one sequence."""


def place_starts(
    rows: IntArray, sequences: IntArray, num_sequences: int, device: torch.device
) -> StartRows:
    """Place start rows, which are consecutive in each sequence; sequence -1 is padding.

    On the host: a device would have to be waited for.
    """
    counts = np.bincount(sequences[sequences >= 0], minlength=num_sequences)
    size = -(-int(counts.max()) // _GRID_STEP) * _GRID_STEP
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    owners = np.maximum(sequences, 0)
    places = owners * size + np.arange(len(rows)) - firsts[owners]
    places = np.where(sequences >= 0, places, num_sequences * size)
    return StartRows(
        torch.from_numpy(rows).to(device, non_blocking=True),
        torch.from_numpy(places).to(device, non_blocking=True),
        size,
    )


@dataclass
class Chains:
    """The attention entries of the steps so far, and the shape of the batch."""

    batch: int
    length: int
    ops: TorchOps
    pointwise: Pointwise
    rope: Rope
    starts: StartRows | None = None
    """None for all rows."""
    keys: list[Tensor] = field(default_factory=list)  # the first (B, KV, T, D), others (…, S, D)
    values: list[Tensor] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """The depth of the next step, from 1."""
        return len(self.keys) + 1

    def tokens(self, token_ids: Tensor) -> Tensor:
        """Return the true tokens that the rows of the next step read: (B, T) → (N,).

        Rows at the end wrap around; they are in no loss.
        """
        ahead = token_ids.roll(-self.depth, 1).reshape(-1)
        return ahead if self.starts is None or self.depth == 1 else ahead[self.starts.rows]

    def angles(self) -> Angles:
        """Return cosines and sines of the rows' positions at the next step."""
        positions = torch.arange(self.length, device=self.ops.device).repeat(self.batch)
        if self.starts is not None and self.depth > 1:
            positions = self.starts.rows % self.length
        return self.ops.angles(positions + len(self.keys), self.rope)

    def own(self, rows: Tensor) -> Tensor:
        """Return the chains' rows among those of the step that has just attended."""
        if self.starts is None or len(self.keys) > 1:
            return rows
        # index_select: the gradient of plain indexing needs a sort.
        return torch.index_select(rows, 0, self.starts.rows)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        """Run the attention of the next step: rows (N, heads, D) → the chains' (n, heads * D)."""
        if not self.keys:
            self.keys.append(self._by_sequence(key))
            self.values.append(self._by_sequence(value))
            queries = self._by_sequence(query)
            attended = attend_sequences(queries, self.keys[0], self.values[0], shape)
            return self.own(attended.transpose(1, 2).reshape(len(query), -1))
        self.keys.append(self._by_chain(key))
        self.values.append(self._by_chain(value))
        attended = self._attend_later(self._by_chain(query), shape).transpose(1, 2).flatten(2)
        if self.starts is None:
            return attended.flatten(0, 1)
        padded = F.pad(attended.flatten(0, 1), (0, 0, 0, 1))
        return torch.index_select(padded, 0, self.starts.places)

    def _by_sequence(self, rows: Tensor) -> Tensor:
        """Group rows by sequence: (B * T, heads, D) → (B, heads, T, D)."""
        return rows.view(self.batch, self.length, *rows.shape[1:]).transpose(1, 2)

    def _by_chain(self, rows: Tensor) -> Tensor:
        """Group the chains' rows by sequence, padded: (n, heads, D) → (B, heads, S, D)."""
        if self.starts is None:
            return self._by_sequence(rows)
        size = self.starts.size
        grid = rows.new_zeros(self.batch * size + 1, *rows.shape[1:])
        grid = grid.index_copy(0, self.starts.places, rows)[:-1]
        return grid.view(self.batch, size, *rows.shape[1:]).transpose(1, 2)

    @cached_property
    def _positions(self) -> Tensor:
        """The position of the start row in every place: (B, S)."""
        if self.starts is None:
            return torch.arange(self.length, device=self.ops.device).expand(self.batch, -1)
        rows = (self.starts.rows % self.length)[:, None, None]
        return self._by_chain(rows)[:, 0, :, 0]

    def _attend_later(self, queries: Tensor, shape: AttentionShape) -> Tensor:
        """Attend causally to first-step entries and to the chain's own later ones.

        (B, heads, S, D) → (B, heads, S, D).
        """
        kv_heads, num_steps = shape.num_kv_heads, len(self.keys) - 1
        query = queries.reshape(self.batch, kv_heads, -1, *queries.shape[2:])
        query = query * shape.scale
        wide = (self.batch, kv_heads, query.shape[2] * query.shape[3], -1)
        scores = query.reshape(wide) @ self.keys[0].transpose(-1, -2)
        scores = scores.view(*query.shape[:4], self.length)  # (B, KV, G, S, T)
        first = 1  # first of the chain's own steps
        if shape.window is not None:
            first = max(first, num_steps - shape.window + 1)
            index = torch.arange(self.length, device=queries.device)
            is_behind = index + shape.window <= self._positions[..., None] + num_steps
            scores = scores.masked_fill(is_behind[:, None, None], float("-inf"))
        own = [(query * key[:, :, None]).sum(-1) for key in self.keys[first:]]
        if shape.sinks is not None:  # a score without a value
            sinks = torch.as_tensor(shape.sinks, device=queries.device).to(query.dtype)
            own.append(sinks.view(1, kv_heads, -1, 1).expand(query.shape[:4]))
        own_scores = torch.stack(own, -1)
        probs, own_probs = self.pointwise.mix_scores(scores, own_scores, self._positions)
        mixed = (probs.reshape(wide) @ self.values[0]).view(*query.shape[:4], -1)
        for step, value in enumerate(self.values[first:]):
            mixed = mixed + own_probs[..., step : step + 1] * value[:, :, None]
        return mixed.flatten(1, 2) * shape.value_scale
