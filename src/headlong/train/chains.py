"""Chains of drafts in training: which entries every row attends to at each depth.

Every row t of a sequence starts a chain. The first step runs over true states. At step k the chain
of row t has position t + k. As in drafting, it attends to the first-step entries up to t and to its
own entries of the later steps. Attention may have windows, sinks, values of another size than keys,
or latent vectors.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headlong.ops.blocks import Rope
from headlong.ops.torch.attention import AttentionShape, attend_sequences
from headlong.ops.torch.maths import Angles
from headlong.ops.torch.ops import TorchOps
from headlong.train.pointwise import Pointwise


@dataclass(slots=True)
class Chains:
    """The attention entries of the steps so far, and the shape of the batch."""

    batch: int
    length: int
    ops: TorchOps
    pointwise: Pointwise
    rope: Rope
    keys: list[Tensor] = field(default_factory=list)  # per step (B, KV, T, D)
    values: list[Tensor] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """The depth of the next step, from 1."""
        return len(self.keys) + 1

    def angles(self) -> Angles:
        """Return cosines and sines of the rows' positions at the next step."""
        own = torch.arange(self.length, device=self.ops.device).repeat(self.batch)
        return self.ops.angles(own + len(self.keys), self.rope)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
        """Run the attention of the next step of all chains: (N, heads, D) → (N, heads * D)."""
        self.keys.append(self._by_sequence(key))
        self.values.append(self._by_sequence(value))
        queries = self._by_sequence(query)
        if len(self.keys) == 1:
            attended = attend_sequences(queries, self.keys[0], self.values[0], shape)
        else:
            attended = self._attend_later(queries, shape)
        return attended.transpose(1, 2).reshape(len(query), -1)

    def _by_sequence(self, rows: Tensor) -> Tensor:
        """Group rows by sequence: (N, heads, D) → (B, heads, T, D)."""
        return rows.view(self.batch, self.length, *rows.shape[1:]).transpose(1, 2)

    def _attend_later(self, queries: Tensor, shape: AttentionShape) -> Tensor:
        """Attend causally to first-step entries and to the chain's own later ones.

        (B, heads, T, D) → (B, heads, T, D).
        """
        kv_heads, num_steps = shape.num_kv_heads, len(self.keys) - 1
        query = queries.reshape(self.batch, kv_heads, -1, self.length, queries.shape[-1])
        query = query * shape.scale
        wide = (self.batch, kv_heads, query.shape[2] * self.length, -1)
        scores = query.reshape(wide) @ self.keys[0].transpose(-1, -2)
        scores = scores.view(*query.shape[:4], self.length)  # (B, KV, G, T, T)
        first = 1  # first of the chain's own steps
        if shape.window is not None:
            first = max(first, num_steps - shape.window + 1)
            index = torch.arange(self.length, device=queries.device)
            is_behind = index[None] + shape.window <= index[:, None] + num_steps
            scores = scores.masked_fill(is_behind, float("-inf"))
        own = [(query * key[:, :, None]).sum(-1) for key in self.keys[first:]]
        if shape.sinks is not None:  # a score without a value
            sinks = torch.as_tensor(shape.sinks, device=queries.device).to(query.dtype)
            own.append(sinks.view(1, kv_heads, -1, 1).expand(query.shape[:4]))
        probs, own_probs = self.pointwise.mix_scores(scores, torch.stack(own, -1))
        mixed = (probs.reshape(wide) @ self.values[0]).view(*query.shape[:4], -1)
        for step, value in enumerate(self.values[first:]):
            mixed = mixed + own_probs[..., step : step + 1] * value[:, :, None]
        return mixed.flatten(1, 2) * shape.value_scale
