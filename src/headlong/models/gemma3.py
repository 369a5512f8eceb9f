"""Gemma 3 (text): norms before and after each block, q/k norms, local and global layers.

Embeddings are scaled by sqrt(hidden size), the MLP uses tanh-approximated GELU, and five of six
layers see a sliding window with their own rotary base. Norm weights arrive as 1 + w (`weights/`).
"""

from dataclasses import replace

from headlong.models import llama
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Layer, Norm
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader

GLOBAL_EVERY = 6
"""Every sixth layer is global where the file does not list its layers."""

LOCAL_ROPE_THETA = 10_000.0
"""Rotary base of the local layers where the file does not say."""

LAYERS_27B = 62
"""Gemma 3 27B scales attention by hidden_size / num_heads; its GGUF files do not say so."""


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Gemma 3 backbone from a checkpoint's tensors."""
    config = _resolve(config)
    frame = llama.build_frame(config, weights, ops, layer_builder(config, weights))
    return replace(frame, embedding_scale=config.hidden_size**0.5)


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer."""
    config = _resolve(config)
    global_rope = make_rope(config.head_dim, config.rope_theta, config.rope_scaling)
    local_rope = make_rope(config.head_dim, config.local_rope_theta or LOCAL_ROPE_THETA)

    def build_layer(index: int) -> Layer:
        prefix = f"blk.{index}."
        rope = local_rope if index in config.local_layers else global_rope

        def norm(name: str, size: int = config.hidden_size) -> Norm:
            return llama.build_norm(config, weights, f"{prefix}{name}.weight", size)

        attention = replace(
            llama.build_attention(config, weights, index, rope),
            query_norm=norm("attn_q_norm", config.head_dim),
            key_norm=norm("attn_k_norm", config.head_dim),
            output_norm=norm("post_attention_norm"),
        )
        mlp = replace(
            llama.build_mlp(config, weights, index),
            activation="gelu_tanh",
            output_norm=norm("post_ffw_norm"),
        )
        return Layer(attention, mlp)

    return build_layer


def _resolve(config: ModelConfig) -> ModelConfig:
    """Fill in what Gemma 3 files leave unsaid."""
    if not config.local_layers and config.sliding_window is not None:
        local = frozenset(i for i in range(config.num_layers) if (i + 1) % GLOBAL_EVERY)
        config = replace(config, local_layers=local)
    if config.attention_scale is None and config.num_layers == LAYERS_27B:
        config = replace(config, attention_scale=(config.hidden_size / config.num_heads) ** -0.5)
    return config
