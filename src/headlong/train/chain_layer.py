"""The layer a recursive head is made of, in training: all chains of drafts at once.

Every row t of a sequence starts a chain. At its first step the layer runs over true states; at
step k the chain that began at t has position t + k and sees, as it would while drafting, the
first-step entries up to t and of the later steps only its own. Parameters are named as in files.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headlong.ops.blocks import Rope
from headlong.ops.torch_maths import Angles
from headlong.ops.torch_ops import TorchOps
from headlong.train.projection import Projection
from headlong.train.teacher import Teacher


@dataclass(slots=True)
class Chains:
    """The entries that the steps so far have left, and where the rows lie."""

    batch: int
    length: int
    ops: TorchOps
    rope: Rope
    keys: list[Tensor] = field(default_factory=list)  # per step (B, KV, T, D)
    values: list[Tensor] = field(default_factory=list)

    def angles(self) -> Angles:
        """Return cosines and sines of the rows' positions at the coming step."""
        own = torch.arange(self.length, device=self.ops.device).repeat(self.batch)
        return self.ops.angles(own + len(self.keys), self.rope)


class Norm(nn.Module):
    """A root-mean-square norm."""

    def __init__(self, size: int, teacher: Teacher) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = teacher.config.norm_eps
        self._rms_norm = teacher.ops.maths.rms_norm

    def forward(self, x: Tensor) -> Tensor:
        """Norm rows: (N, size)."""
        return self._rms_norm(x, self.weight, self._eps)


class SelfAttention(nn.Module):
    """Attention over chains."""

    def __init__(self, teacher: Teacher, input_size: int) -> None:
        super().__init__()
        config = teacher.config
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Projection(input_size, queries, bias=False)
        self.k_proj = Projection(input_size, keys, bias=False)
        self.v_proj = Projection(input_size, keys, bias=False)
        self.o_proj = Projection(queries, config.hidden_size, bias=False)
        self._head_dim = config.head_dim
        self._num_kv_heads = config.num_kv_heads
        self._rotate = teacher.ops.maths.rotate
        self._mix_scores = teacher.pointwise.mix_scores

    def forward(self, x: Tensor, chains: Chains) -> Tensor:
        """Take the next step of all chains: (N, input_size) → (N, H)."""
        angles = chains.angles()
        rotate, head_dim = self._rotate, self._head_dim
        query = rotate(self.q_proj(x).view(len(x), -1, head_dim), *angles)
        key = rotate(self.k_proj(x).view(len(x), -1, head_dim), *angles)
        shape = (chains.batch, chains.length, -1, head_dim)
        chains.keys.append(key.view(shape).transpose(1, 2))
        chains.values.append(self.v_proj(x).view(shape).transpose(1, 2))
        if len(chains.keys) == 1:
            attended = F.scaled_dot_product_attention(
                query.view(shape).transpose(1, 2),
                chains.keys[0],
                chains.values[0],
                is_causal=True,
                enable_gqa=True,
            ).transpose(1, 2)
        else:
            attended = self._attend_later(query, chains)
        return self.o_proj(attended.reshape(len(x), -1))

    def _attend_later(self, query: Tensor, chains: Chains) -> Tensor:
        """Mix first-step entries causally with the chain's own later ones: (B, T, KV, G, D)."""
        batch, length, head_dim = chains.batch, chains.length, self._head_dim
        query = query.view(batch, length, self._num_kv_heads, -1, head_dim)
        query = query.permute(0, 2, 3, 1, 4) * head_dim**-0.5  # (B, KV, G, T, D)
        group = query.shape[2]
        wide = (batch, self._num_kv_heads, group * length, -1)
        scores = query.reshape(wide) @ chains.keys[0].transpose(-1, -2)
        scores = scores.view(*query.shape[:4], length)  # (B, KV, G, T, T)
        own = [(query * key[:, :, None]).sum(-1) for key in chains.keys[1:]]
        probs, own_probs = self._mix_scores(scores, torch.stack(own, -1))
        mixed = (probs.reshape(wide) @ chains.values[0]).view(query.shape)
        for step, value in enumerate(chains.values[1:]):
            mixed = mixed + own_probs[..., step : step + 1] * value[:, :, None]
        return mixed.permute(0, 3, 1, 2, 4)


class GatedMlp(nn.Module):
    """The gated MLP."""

    def __init__(self, teacher: Teacher, inner: int) -> None:
        super().__init__()
        hidden = teacher.config.hidden_size
        self.gate_proj = Projection(hidden, inner, bias=False)
        self.up_proj = Projection(hidden, inner, bias=False)
        self.down_proj = Projection(inner, hidden, bias=False)
        self._silu_gate = teacher.ops.maths.gates["silu"]

    def forward(self, x: Tensor) -> Tensor:
        """Run the MLP: (N, H)."""
        both = torch.cat([self.gate_proj(x), self.up_proj(x)], -1)
        return self.down_proj(self._silu_gate(both))


class ChainLayer(nn.Module):
    """One pre-norm transformer layer over chains.

    With `beside` (EAGLE-3) q/k/v read [input_layernorm(embedding), hidden_norm(state)] and the
    residual is the state; without, the layer is the backbone's ordinary one.
    """

    def __init__(self, teacher: Teacher, inner: int, *, beside: bool) -> None:
        super().__init__()
        hidden = teacher.config.hidden_size
        self.input_layernorm = Norm(hidden, teacher)
        if beside:
            self.hidden_norm = Norm(hidden, teacher)
        self.self_attn = SelfAttention(teacher, hidden * (2 if beside else 1))
        self.post_attention_layernorm = Norm(hidden, teacher)
        self.mlp = GatedMlp(teacher, inner)

    def forward(self, state: Tensor, chains: Chains, beside: Tensor | None = None) -> Tensor:
        """Take one step: (N, H) → (N, H)."""
        if beside is None:
            read = self.input_layernorm(state)
        else:
            read = torch.cat([self.input_layernorm(beside), self.hidden_norm(state)], -1)
        state = state + self.self_attn(read, chains)
        return state + self.mlp(self.post_attention_layernorm(state))
