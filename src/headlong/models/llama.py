"""Llama: pre-norm attention and gated MLP, rotary positions, nothing else.

SmolLM2, Llama 2/3 and many others. Qwen2 and Qwen3 differ by two fields and build on this file.
"""

from collections.abc import Callable
from typing import TypeAlias

from headlong.models.model_config import ModelConfig
from headlong.models.rope import divide_rope, make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, GatedMlp, Layer, Linear, Norm, Rope
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader

LayerBuilder: TypeAlias = Callable[[int], Layer]
"""Builds the layer of an index; from `num_layers` on, those of the model's own MTP head."""


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Llama backbone from a checkpoint's tensors."""
    return build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> LayerBuilder:
    """Return what builds one layer."""
    rope = make_rope(config.head_dim, config.rope_theta, config.rope_scaling)
    divisors = weights.optional_vector("rope_freqs.weight", config.head_dim // 2)
    if divisors is not None:
        rope = divide_rope(rope, divisors)

    def build_layer(index: int) -> Layer:
        return Layer(
            mixer=build_attention(config, weights, index, rope),
            channel=build_mlp(config, weights, index),
        )

    return build_layer


def build_frame(
    config: ModelConfig, weights: WeightReader, ops: Ops, build_layer: LayerBuilder
) -> Backbone:
    """Put embedding, final norm and LM head around the layers; a missing LM head is a tied one."""
    table_shape = (config.vocab_size, config.hidden_size)
    embedding = weights.matrix("token_embd.weight", table_shape)
    is_tied = not weights.has("output.weight")
    return Backbone(
        config=config,
        ops=ops,
        embedding=embedding,
        layers=tuple(build_layer(index) for index in range(config.num_layers)),
        final_norm=build_norm(config, weights, "output_norm.weight", config.hidden_size),
        lm_head=Linear(embedding if is_tied else weights.matrix("output.weight", table_shape)),
    )


def build_attention(
    config: ModelConfig, weights: WeightReader, index: int, rope: Rope
) -> Attention:
    """Build one layer's attention; q/k/v biases are taken along where the file has them."""
    prefix = f"blk.{index}."
    query_size = config.num_heads * config.head_dim
    key_size = config.num_kv_heads * config.head_dim
    hidden_size = config.hidden_size
    return Attention(
        norm=build_norm(config, weights, f"{prefix}attn_norm.weight", hidden_size),
        query=_linear(weights, f"{prefix}attn_q", (query_size, hidden_size)),
        key=_linear(weights, f"{prefix}attn_k", (key_size, hidden_size)),
        value=_linear(weights, f"{prefix}attn_v", (key_size, hidden_size)),
        output=_linear(weights, f"{prefix}attn_output", (hidden_size, query_size)),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rope=rope,
        scale=config.attention_scale or config.head_dim**-0.5,
        window=config.sliding_window if index in config.local_layers else None,
    )


def build_mlp(
    config: ModelConfig, weights: WeightReader, index: int, norm_name: str = "ffn_norm"
) -> GatedMlp:
    """Build one layer's gated MLP."""
    prefix = f"blk.{index}."
    inner, hidden_size = config.intermediate_size, config.hidden_size
    return GatedMlp(
        norm=build_norm(config, weights, f"{prefix}{norm_name}.weight", hidden_size),
        gate=_linear(weights, f"{prefix}ffn_gate", (inner, hidden_size)),
        up=_linear(weights, f"{prefix}ffn_up", (inner, hidden_size)),
        down=_linear(weights, f"{prefix}ffn_down", (hidden_size, inner)),
    )


def build_norm(config: ModelConfig, weights: WeightReader, name: str, size: int) -> Norm:
    """Build one norm."""
    return Norm(weights.vector(name, size), config.norm_eps)


def _linear(weights: WeightReader, name: str, shape: tuple[int, int]) -> Linear:
    bias = weights.optional_vector(f"{name}.bias", shape[0])
    return Linear(weights.matrix(f"{name}.weight", shape), bias)
