"""MiMo-V2 (Flash): sliding windows with sinks beside full attention, values narrower than keys.

Sliding-window layers have their own number of key/value heads and their own rotary base. Only a
part of each head turns, and what was attended to is scaled. The first layer has a dense MLP, the
others a mixture of experts; MTP layers have a sliding window and a dense MLP.
"""

from headlong.errors import ArchitectureError
from headlong.models import llama
from headlong.models.experts import build_channel
from headlong.models.mimo_config import MimoConfig
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, Layer, Linear, Rope
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a MiMo-V2 backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer; those behind the backbone are MTP layers."""
    sizes = config.mimo
    if sizes is None:
        raise ArchitectureError(
            f"A {config.architecture} model without the sizes of its heads (v_head_dim).",
            "Put the model's own config.json into its folder.",
        )
    rotary_dim = config.rotary_dim or config.head_dim
    global_rope = make_rope(rotary_dim, config.rope_theta, config.rope_scaling)
    local_rope = make_rope(rotary_dim, config.local_rope_theta or config.rope_theta)

    def build_layer(index: int) -> Layer:
        is_local = index in config.local_layers or index >= config.num_layers
        rope = local_rope if is_local else global_rope
        attention = _build_attention(config, sizes, weights, index, rope, is_local)
        return Layer(attention, build_channel(config, weights, index))

    return build_layer


def _build_attention(
    config: ModelConfig,
    sizes: MimoConfig,
    weights: WeightReader,
    index: int,
    rope: Rope,
    is_local: bool,
) -> Attention:
    prefix, hidden, num_heads = f"blk.{index}.", config.hidden_size, config.num_heads
    num_kv_heads = sizes.local_kv_heads if is_local else config.num_kv_heads

    def linear(name: str, outputs: int, inputs: int) -> Linear:
        return Linear(weights.matrix(f"{prefix}{name}.weight", (outputs, inputs)))

    return Attention(
        norm=llama.build_norm(config, weights, f"{prefix}attn_norm.weight", hidden),
        query=linear("attn_q", num_heads * config.head_dim, hidden),
        key=linear("attn_k", num_kv_heads * config.head_dim, hidden),
        value=linear("attn_v", num_kv_heads * sizes.value_dim, hidden),
        output=linear("attn_output", hidden, num_heads * sizes.value_dim),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.head_dim,
        rope=rope,
        scale=config.head_dim**-0.5,
        value_size=sizes.value_dim,
        value_scale=sizes.value_scale,
        sinks=weights.optional_vector(f"{prefix}attn_sinks.weight", num_heads),
        window=config.sliding_window if is_local else None,
    )
