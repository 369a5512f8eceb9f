"""Qwen3.5 (dense, text): three layers of gated delta net to one of gated attention.

Attention has norms on query and key heads, turns a part of each head with the position, and gates
its result; query and gate lie in one matrix, head by head. Norm weights arrive as 1 + w, decay
rates as GGUF has them (see `weights/`). Images and the MTP layer are not read here.
"""

import numpy as np

from headlong.errors import ArchitectureError
from headlong.models import llama
from headlong.models.model_config import DeltaNetConfig, ModelConfig
from headlong.models.rope import make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, GatedDeltaNet, Layer, Linear, Norm, Rope
from headlong.ops.op_set import Ops
from headlong.weights.ledger import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Qwen3.5 backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer."""
    sizes = config.delta_net
    if sizes is None:
        raise ArchitectureError(
            "A qwen35 model without the sizes of its recurrent layers (linear_num_value_heads).",
            "Such models are read from Hugging Face folders; put the model's config.json there.",
        )
    rotary_dim = config.rotary_dim or config.head_dim
    rope = make_rope(rotary_dim, config.rope_theta, config.rope_scaling)

    def build_layer(index: int) -> Layer:
        prefix = f"blk.{index}."
        channel = llama.build_mlp(config, weights, index, "post_attention_norm")
        if index in sizes.layers:
            return Layer(_build_delta_net(config, sizes, weights, prefix), channel)
        return Layer(_build_attention(config, weights, prefix, rope), channel)

    return build_layer


def _build_attention(
    config: ModelConfig, weights: WeightReader, prefix: str, rope: Rope
) -> Attention:
    num_heads, dim, hidden_size = config.num_heads, config.head_dim, config.hidden_size
    # Rows: for every head its query, then its gate.
    rows = np.arange(2 * num_heads * dim).reshape(num_heads, 2, dim)
    name, shape = f"{prefix}attn_q.weight", (rows.size, hidden_size)
    query, gate = weights.matrices(name, shape, [rows[:, i].reshape(-1) for i in (0, 1)])
    key_shape = (config.num_kv_heads * dim, hidden_size)
    output_shape = (hidden_size, num_heads * dim)
    return Attention(
        norm=_norm(config, weights, f"{prefix}attn_norm"),
        query=Linear(query),
        key=Linear(weights.matrix(f"{prefix}attn_k.weight", key_shape)),
        value=Linear(weights.matrix(f"{prefix}attn_v.weight", key_shape)),
        output=Linear(weights.matrix(f"{prefix}attn_output.weight", output_shape)),
        num_heads=num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=dim,
        rope=rope,
        scale=dim**-0.5,
        query_norm=_norm(config, weights, f"{prefix}attn_q_norm", dim),
        key_norm=_norm(config, weights, f"{prefix}attn_k_norm", dim),
        gate=Linear(gate),
    )


def _build_delta_net(
    config: ModelConfig, sizes: DeltaNetConfig, weights: WeightReader, prefix: str
) -> GatedDeltaNet:
    num_heads, hidden_size = sizes.num_value_heads, config.hidden_size
    value_size = num_heads * sizes.value_dim
    num_channels = 2 * sizes.num_key_heads * sizes.key_dim + value_size

    def linear(name: str, outputs: int, inputs: int = hidden_size) -> Linear:
        return Linear(weights.matrix(f"{prefix}{name}.weight", (outputs, inputs)))

    factors = weights.array(f"{prefix}ssm_conv1d.weight", (num_channels, sizes.conv_width))
    return GatedDeltaNet(
        norm=_norm(config, weights, f"{prefix}attn_norm"),
        mixed=linear("attn_qkv", num_channels),
        gate=linear("attn_gate", value_size),
        update=linear("ssm_beta", num_heads),
        decay=linear("ssm_alpha", num_heads),
        convolution=np.ascontiguousarray(factors.T),
        decay_rate=-weights.vector(f"{prefix}ssm_a", num_heads),
        decay_bias=weights.vector(f"{prefix}ssm_dt.bias", num_heads),
        head_norm=_norm(config, weights, f"{prefix}ssm_norm", sizes.value_dim),
        output=linear("ssm_out", hidden_size, value_size),
        num_key_heads=sizes.num_key_heads,
        num_value_heads=num_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
    )


def _norm(config: ModelConfig, weights: WeightReader, name: str, size: int | None = None) -> Norm:
    return llama.build_norm(config, weights, f"{name}.weight", size or config.hidden_size)
