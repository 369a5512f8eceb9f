"""DeepSeek V2-Lite, V3 and R1, GLM-4.7-Flash: latent attention, experts behind dense layers.

Rotary rows are put half by half here, whatever the file; each head's own matrices come split and
turned from GGUF files, in one (`attn_kv_b`) from others.
"""

import numpy as np

from headlong.arrays import IntArray
from headlong.errors import ArchitectureError
from headlong.models import llama
from headlong.models.experts import build_channel
from headlong.models.latent_config import LatentConfig
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import LatentAttention, Layer, Linear, Rope
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build the backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer."""
    sizes = config.latent
    if sizes is None:
        raise ArchitectureError(
            f"A {config.architecture} model without the sizes of latent attention (kv_lora_rank).",
            "It is of another kind than those read here; use a model of a listed architecture.",
        )
    rope = make_rope(sizes.rotary_dim, config.rope_theta, config.rope_scaling)

    def build_layer(index: int) -> Layer:
        mixer = _build_attention(config, sizes, weights, f"blk.{index}.", rope)
        return Layer(mixer, build_channel(config, weights, index))

    return build_layer


def _build_attention(
    config: ModelConfig, sizes: LatentConfig, weights: WeightReader, prefix: str, rope: Rope
) -> LatentAttention:
    hidden_size, heads = config.hidden_size, config.num_heads
    low, rank = sizes.query_rank, sizes.rank

    def sorted_rows(name: str, inputs: int, order: IntArray) -> Linear:
        [matrix] = weights.matrices(f"{prefix}{name}.weight", (order.size, inputs), [order])
        return Linear(matrix)

    def linear(name: str, outputs: int, inputs: int) -> Linear:
        return Linear(weights.matrix(f"{prefix}{name}.weight", (outputs, inputs)))

    # Of every head, and of what all heads share, the last rows turn.
    query_rows = _deinterleaved(sizes, np.arange(heads * sizes.head_dim).reshape(heads, -1))
    latent_rows = _deinterleaved(sizes, np.arange(rank + sizes.rotary_dim)[None])
    key_up, value_up = _head_matrices(config, sizes, weights, prefix)
    query_name = "attn_q" if low is None else "attn_q_b"
    return LatentAttention(
        norm=llama.build_norm(config, weights, f"{prefix}attn_norm.weight", hidden_size),
        query=sorted_rows(query_name, low or hidden_size, query_rows),
        latent=sorted_rows("attn_kv_a_mqa", hidden_size, latent_rows),
        latent_norm=llama.build_norm(config, weights, f"{prefix}attn_kv_a_norm.weight", rank),
        key_up=key_up,
        value_up=value_up,
        output=linear("attn_output", hidden_size, heads * sizes.value_dim),
        num_heads=heads,
        plain_dim=sizes.plain_dim,
        value_dim=sizes.value_dim,
        rope=rope,
        scale=sizes.scale,
        query_down=None if low is None else linear("attn_q_a", low, hidden_size),
        query_norm=None
        if low is None
        else llama.build_norm(config, weights, f"{prefix}attn_q_a_norm.weight", low),
    )


def _deinterleaved(sizes: LatentConfig, rows: IntArray) -> IntArray:
    """Return row numbers, (heads, rows of a head), with rotary pairs put half by half: (all,)."""
    if not sizes.is_interleaved:
        return rows.reshape(-1)
    plain, turning = np.split(rows, [rows.shape[1] - sizes.rotary_dim], axis=1)
    return np.concatenate([plain, turning[:, ::2], turning[:, 1::2]], axis=1).reshape(-1)


def _head_matrices(
    config: ModelConfig, sizes: LatentConfig, weights: WeightReader, prefix: str
) -> tuple[Linear, Linear]:
    """Return what turns queries into latent vectors, and latent vectors into values."""
    heads, rank, plain_dim = config.num_heads, sizes.rank, sizes.plain_dim
    if weights.has(f"{prefix}attn_k_b.weight"):
        key_up = weights.matrix(f"{prefix}attn_k_b.weight", (heads * rank, plain_dim))
        shape = (heads * sizes.value_dim, rank)
        return Linear(key_up), Linear(weights.matrix(f"{prefix}attn_v_b.weight", shape))
    # Rows: for every head what makes its keys, then what makes its values.
    rows = np.arange(heads * (plain_dim + sizes.value_dim)).reshape(heads, -1)
    name, shape = f"{prefix}attn_kv_b.weight", (rows.size, rank)
    [value_up] = weights.matrices(name, shape, [rows[:, plain_dim:].reshape(-1)])
    key_up = weights.block_transposed_matrix(name, shape, rows[:, :plain_dim])
    return Linear(key_up), Linear(value_up)
