"""Qwen3 (dense): Llama with a norm on every query and key head before rotary."""

from dataclasses import replace

from headlong.models import llama
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Qwen3 backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer."""
    rope = make_rope(config.head_dim, config.rope_theta, config.rope_scaling)

    def build_layer(index: int) -> Layer:
        prefix = f"blk.{index}."
        attention = replace(
            llama.build_attention(config, weights, index, rope),
            query_norm=llama.build_norm(
                config, weights, f"{prefix}attn_q_norm.weight", config.head_dim
            ),
            key_norm=llama.build_norm(
                config, weights, f"{prefix}attn_k_norm.weight", config.head_dim
            ),
        )
        return Layer(attention, llama.build_mlp(config, weights, index))

    return build_layer
