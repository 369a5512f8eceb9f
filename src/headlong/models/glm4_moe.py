"""GLM-4.5 and 4.6: Llama with experts, a part of each head rotary, and norms of heads in some.

The first layers are dense; later ones have experts, chosen by sigmoid scores with a bias.
"""

from dataclasses import replace

from headlong.models import llama
from headlong.models.experts import build_channel
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer, Norm
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a GLM backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer."""
    rotary_dim = config.rotary_dim or config.head_dim
    rope = make_rope(rotary_dim, config.rope_theta, config.rope_scaling)

    def head_norm(name: str) -> Norm | None:
        if not weights.has(name):
            return None
        return llama.build_norm(config, weights, name, config.head_dim)

    def build_layer(index: int) -> Layer:
        attention = replace(
            llama.build_attention(config, weights, index, rope),
            query_norm=head_norm(f"blk.{index}.attn_q_norm.weight"),
            key_norm=head_norm(f"blk.{index}.attn_k_norm.weight"),
        )
        return Layer(attention, build_channel(config, weights, index, "post_attention_norm"))

    return build_layer
