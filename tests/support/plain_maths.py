"""The maths of a transformer layer once more, in float64 over a whole sequence, for comparison.

No cache, no op set, no rows: what a textbook would write. Tests hold the heads against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import FloatArray
from headlong.models.model_config import ModelConfig

Float64Array: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """One layer with Hugging Face tensor names behind a prefix."""

    tensors: Tensors
    prefix: str
    config: ModelConfig
    theta: float
    adds_to_normed: bool = False
    window: int | None = None

    def run(self, x: Float64Array, beside: Float64Array | None = None) -> Float64Array:
        """Run the layer over a whole sequence from position 0: (T, H) → (T, H)."""
        if beside is None:
            read = self.rms(x, "input_layernorm")
        else:
            halves = [self.rms(beside, "input_layernorm"), self.rms(x, "hidden_norm")]
            read = np.concatenate(halves, axis=1)
            x = halves[1] if self.adds_to_normed else x
        x = x + self._attend(read)
        normed = self.rms(x, "post_attention_layernorm")
        gate = self._project(normed, "mlp.gate_proj")
        return x + self._project(silu(gate) * self._project(normed, "mlp.up_proj"), "mlp.down_proj")

    def rms(self, x: Float64Array, name: str) -> Float64Array:
        """Apply one of the layer's norms."""
        return rms(x, self.tensors[f"{self.prefix}{name}.weight"], self.config.norm_eps)

    def _attend(self, read: Float64Array) -> Float64Array:
        config, length = self.config, len(read)
        query = self._heads(read, "q", config.num_heads)  # (heads, T, D)
        key = self._heads(read, "k", config.num_kv_heads)
        value = self._project(read, "self_attn.v_proj")
        value = value.reshape(length, config.num_kv_heads, config.head_dim).swapaxes(0, 1)
        group = config.num_heads // config.num_kv_heads
        key, value = key.repeat(group, axis=0), value.repeat(group, axis=0)
        scores = query @ key.swapaxes(1, 2) / np.sqrt(config.head_dim)
        seen = np.tri(length, dtype=bool)
        if self.window is not None:
            seen &= ~np.tri(length, k=-self.window, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        attended = (shares @ value).swapaxes(0, 1).reshape(length, -1)
        return self._project(attended, "self_attn.o_proj")

    def _heads(self, read: Float64Array, name: str, num_heads: int) -> Float64Array:
        dim = self.config.head_dim
        heads = self._project(read, f"self_attn.{name}_proj")
        heads = heads.reshape(len(read), num_heads, dim)
        if f"{self.prefix}self_attn.{name}_norm.weight" in self.tensors:
            heads = self.rms(heads, f"self_attn.{name}_norm")
        angles = np.outer(np.arange(len(read)), self.theta ** (-np.arange(0, dim, 2) / dim))
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        low, high = heads[..., : dim // 2], heads[..., dim // 2 :]
        turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
        return turned.swapaxes(0, 1)

    def _project(self, x: Float64Array, name: str) -> Float64Array:
        result: Any = x @ self.tensors[f"{self.prefix}{name}.weight"].T.astype(np.float64)
        bias = self.tensors.get(f"{self.prefix}{name}.bias")
        return np.asarray(result if bias is None else result + bias)


def rms(x: Float64Array, weight: FloatArray, eps: float) -> Float64Array:
    """Scale rows to unit root mean square, times the weight."""
    scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return np.asarray(x / scale * weight, dtype=np.float64)


def silu(x: Float64Array) -> Float64Array:
    """x times its logistic."""
    return np.asarray(x / (1 + np.exp(-x)), dtype=np.float64)
