"""The frozen backbone in torch: what writes the answers, and what a head in training listens to.

In:  a checkpoint of a Llama, Qwen2 or Qwen3 model; token ids.
Out: hidden states, tapped states and logits, in bfloat16 on CUDA and float32 on the CPU.
Written for whole batches; decoding row by row is `sampler`'s business. It never learns.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.errors import ArchitectureError
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.rope import divide_rope, make_rope
from headlong.train.pointwise import Pointwise
from headlong.weights.checkpoint import Checkpoint

ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class TorchLayer:
    """Weights of one layer; q, k, v and gate, up lie under one another."""

    attention_norm: Tensor
    qkv: Tensor  # ((heads + 2 * kv_heads) * D, H)
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # (D,)
    key_norm: Tensor | None
    output: Tensor  # (H, heads * D)
    mlp_norm: Tensor
    gate_up: Tensor  # (2 * I, H)
    down: Tensor  # (H, I)


@dataclass(frozen=True, slots=True)
class HiddenBatch:
    """What a pass over B sequences of T tokens leaves, as flat rows (B * T, …)."""

    raw: Tensor  # (B * T, H)
    normed: Tensor  # (B * T, H)
    taps: Tensor | None  # (B * T, num_taps * H)


@dataclass(frozen=True, slots=True)
class TorchBackbone:
    """A frozen model on one device."""

    config: ModelConfig
    pointwise: Pointwise
    embedding: Tensor  # (V, H)
    layers: tuple[TorchLayer, ...]
    final_norm: Tensor
    lm_head: Tensor  # (V, H)
    frequencies: Tensor  # (D / 2,)

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self.embedding.device

    def mixed_precision(self) -> AbstractContextManager[Any]:
        """Return the context in which a head's float32 weights meet 16-bit rows on CUDA."""
        context: AbstractContextManager[Any] = torch.autocast(
            "cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda"
        )
        return context

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of rotary positions: (N,) → twice (N, D / 2)."""
        turned = positions.float()[:, None] * self.frequencies[None]
        return turned.cos(), turned.sin()

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply one of the backbone's norms."""
        return self.pointwise.rms_norm(x, weight, self.config.norm_eps)

    def project_qkv(
        self, x: Tensor, layer: TorchLayer, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values: (N, heads, D), twice (N, kv_heads, D)."""
        config = self.config
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        qkv = F.linear(self.norm(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(-1, heads + 2 * kv_heads, head_dim)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        if layer.query_norm is not None:
            query = self.norm(query.reshape(-1, head_dim), layer.query_norm).view(query.shape)
            key = self.norm(key.reshape(-1, head_dim), layer.key_norm).view(key.shape)
        rotate = self.pointwise.rotate
        return rotate(query, *angles), rotate(key, *angles), value

    def finish_layer(self, x: Tensor, attended: Tensor, layer: TorchLayer) -> Tensor:
        """Project attention's result, add it, and run the gated MLP: (N, H)."""
        x = x + F.linear(attended.reshape(x.shape[0], -1), layer.output)
        gate_up = F.linear(self.norm(x, layer.mlp_norm), layer.gate_up)
        return x + F.linear(self.pointwise.swiglu(gate_up), layer.down)

    def forward(self, token_ids: Tensor, tap_layers: tuple[int, ...] = ()) -> HiddenBatch:
        """Read whole sequences from position 0: (B, T) → rows in the same order."""
        taps: list[Tensor] = []
        x = self.embedding[token_ids.reshape(-1)]
        for index, x in enumerate(self.run_layers(token_ids)):
            if index in tap_layers:
                taps.append(x)
        normed = self.norm(x, self.final_norm)
        return HiddenBatch(x, normed, torch.cat(taps, -1) if taps else None)

    def run_layers(self, token_ids: Tensor, keep: "KeepKeys | None" = None) -> Iterator[Tensor]:
        """Yield the input of every layer, then the output of the last: each (B * T, H).

        `keep` is told every layer's keys and values, which is how a prompt enters a cache.
        """
        batch, length = token_ids.shape
        positions = torch.arange(length, device=token_ids.device).repeat(batch)
        angles = self.angles(positions)
        x = self.embedding[token_ids.reshape(-1)]
        for index, layer in enumerate(self.layers):
            yield x
            query, key, value = (
                rows.view(batch, length, -1, self.config.head_dim).transpose(1, 2)
                for rows in self.project_qkv(x, layer, angles)
            )  # each (B, heads, T, D)
            if keep is not None:
                keep(index, key, value)
            attended = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            x = self.finish_layer(x, attended.transpose(1, 2), layer)
        yield x


class KeepKeys(Protocol):
    """Receives the keys and values a pass computes; see `sampler.KeyValueRows`."""

    def __call__(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Take one layer's keys and values: (B, kv_heads, T, D) each."""


def load_torch_backbone(
    checkpoint: Checkpoint, device: torch.device, pointwise: Pointwise
) -> TorchBackbone:
    """Unpack a checkpoint onto a device; its weights need no gradients."""
    config = read_config(checkpoint)
    if config.architecture not in ARCHITECTURES or config.local_layers:
        raise ArchitectureError(
            f"Heads for {config.architecture} models cannot be trained here yet.",
            f"Known are {', '.join(ARCHITECTURES)} without sliding windows.",
        )
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def tensor(*names: str) -> Tensor:
        values = np.concatenate([checkpoint.tensors[name].to_float32() for name in names])
        is_vector = values.ndim == 1  # norms stay exact, they cost nothing
        return torch.from_numpy(values).to(device, torch.float32 if is_vector else dtype)

    def optional(*names: str) -> Tensor | None:
        return tensor(*names) if names[0] in checkpoint.tensors else None

    rope = make_rope(config.head_dim, config.rope_theta, config.rope_scaling)
    if "rope_freqs.weight" in checkpoint.tensors:
        rope = divide_rope(rope, checkpoint.tensors["rope_freqs.weight"].to_float32())
    layers: list[TorchLayer] = []
    for index in range(config.num_layers):
        p = f"blk.{index}."
        bias = optional(*(f"{p}attn_{part}.bias" for part in "qkv"))
        layers.append(
            TorchLayer(
                attention_norm=tensor(f"{p}attn_norm.weight"),
                qkv=tensor(*(f"{p}attn_{part}.weight" for part in "qkv")),
                qkv_bias=None if bias is None else bias.to(dtype),
                query_norm=optional(f"{p}attn_q_norm.weight"),
                key_norm=optional(f"{p}attn_k_norm.weight"),
                output=tensor(f"{p}attn_output.weight"),
                mlp_norm=tensor(f"{p}ffn_norm.weight"),
                gate_up=tensor(f"{p}ffn_gate.weight", f"{p}ffn_up.weight"),
                down=tensor(f"{p}ffn_down.weight"),
            )
        )
    embedding = tensor("token_embd.weight")
    return TorchBackbone(
        config=config,
        pointwise=pointwise,
        embedding=embedding,
        layers=tuple(layers),
        final_norm=tensor("output_norm.weight"),
        lm_head=tensor("output.weight") if "output.weight" in checkpoint.tensors else embedding,
        frequencies=torch.from_numpy(rope.frequencies).to(device),
    )
