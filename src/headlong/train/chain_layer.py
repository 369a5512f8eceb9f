"""The layer of a recursive head in training, over all chains of drafts at once.

In:  rows of sequences; chains (`chains.py`). Out: the chains' rows of the next depth. Parameters
have their names in head files.
"""

import torch
from torch import Tensor, nn

from headlong.ops.torch.attention import AttentionShape
from headlong.train.chains import Chains
from headlong.train.projection import Projection
from headlong.train.teacher import Teacher


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
        heads, dim = (config.num_heads, config.num_kv_heads), config.head_dim
        self._shape = AttentionShape(*heads, dim, dim, scale=dim**-0.5)
        self._rotate = teacher.ops.maths.rotate

    def forward(self, x: Tensor, chains: Chains) -> Tensor:
        """Run the next step: rows (N, input_size) → the chains' (n, H)."""
        angles = chains.angles()
        rotate, shape = self._rotate, (len(x), -1, self._shape.head_dim)
        query = rotate(self.q_proj(x).view(shape), *angles)
        key = rotate(self.k_proj(x).view(shape), *angles)
        return self.o_proj(chains.attend(query, key, self.v_proj(x).view(shape), self._shape))


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

    `with_embedding` (EAGLE-3): q/k/v read [input_layernorm(embedding), hidden_norm(state)] and the
    residual is the state. Otherwise this is an ordinary layer.
    """

    def __init__(self, teacher: Teacher, inner: int, *, with_embedding: bool) -> None:
        super().__init__()
        hidden = teacher.config.hidden_size
        self.input_layernorm = Norm(hidden, teacher)
        if with_embedding:
            self.hidden_norm = Norm(hidden, teacher)
        self.self_attn = SelfAttention(teacher, hidden * (2 if with_embedding else 1))
        self.post_attention_layernorm = Norm(hidden, teacher)
        self.mlp = GatedMlp(teacher, inner)

    def forward(self, state: Tensor, chains: Chains, embedded: Tensor | None = None) -> Tensor:
        """Run one step: rows (N, H) → the chains' (n, H)."""
        if embedded is None:
            read = self.input_layernorm(state)
        else:
            read = torch.cat([self.input_layernorm(embedded), self.hidden_norm(state)], -1)
        attended = self.self_attn(read, chains)
        state = chains.own(state) + attended
        return state + self.mlp(self.post_attention_layernorm(state))
