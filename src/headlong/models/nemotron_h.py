"""Nemotron-H and Nemotron 3: layers of one part each, in a pattern of four kinds.

Mamba-2, attention without positions, MLPs that square what is positive, and mixtures of experts
with such MLPs, in a latent space where the file has one. Every part has the norm `attn_norm`. The
MTP layer is one of attention and experts.
"""

from dataclasses import replace

import numpy as np

from headlong.arrays import IntArray
from headlong.errors import ArchitectureError
from headlong.models import llama
from headlong.models.experts import build_experts
from headlong.models.mamba_config import MambaConfig
from headlong.models.model_config import ModelConfig
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Channel, GatedMlp, Layer, Linear, Mamba2, Rope
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader

NO_ROPE = Rope(np.zeros(0, dtype=np.float32))
"""Attention does not know positions but through the layers that count them."""


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Nemotron-H backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer; those behind the backbone are MTP layers."""
    sizes = config.mamba
    if sizes is None or len(sizes.kinds) != config.num_layers:
        raise ArchitectureError(
            f"A {config.architecture} model whose metadata does not name the kinds of its "
            f"{config.num_layers} layers.",
            "They are in hybrid_override_pattern of config.json; pull the model again.",
        )

    def build_layer(index: int) -> Layer:
        if index >= config.num_layers:
            attention = llama.build_attention(config, weights, index, NO_ROPE)
            return Layer(attention, _build_channel(config, weights, index, "post_attention_norm"))
        kind = sizes.kinds[index]
        if kind == "M":
            return Layer(_build_mamba(config, sizes, weights, index), None)
        if kind == "*":
            return Layer(llama.build_attention(config, weights, index, NO_ROPE), None)
        return Layer(None, _build_channel(config, weights, index, "attn_norm"))

    return build_layer


def _build_channel(
    config: ModelConfig, weights: WeightReader, index: int, norm_name: str
) -> Channel:
    """Build experts where the layer has a router, else an MLP."""
    prefix, inner, hidden = f"blk.{index}.", config.intermediate_size, config.hidden_size
    if config.experts is not None and weights.has(f"{prefix}ffn_gate_inp.weight"):
        sizes = replace(config.experts, is_gated=False, scoring="sigmoid")
        return build_experts(config, sizes, weights, index, norm_name)
    return GatedMlp(
        norm=llama.build_norm(config, weights, f"{prefix}{norm_name}.weight", hidden),
        gate=None,
        up=Linear(weights.matrix(f"{prefix}ffn_up.weight", (inner, hidden))),
        down=Linear(weights.matrix(f"{prefix}ffn_down.weight", (hidden, inner))),
        activation="relu_squared",
    )


def _build_mamba(
    config: ModelConfig, sizes: MambaConfig, weights: WeightReader, index: int
) -> Mamba2:
    prefix, hidden, num_heads = f"blk.{index}.", config.hidden_size, sizes.num_heads
    value_size, key_size = num_heads * sizes.head_dim, sizes.num_groups * sizes.state_size
    num_channels = value_size + 2 * key_size
    # The file has [gate, x, B, C, step]; blocks read C, B, x, as queries, keys and values.
    channels = _reversed_parts(value_size, key_size)
    num_rows = value_size + num_channels + num_heads
    orders = [
        np.arange(value_size),
        value_size + channels,
        np.arange(num_rows - num_heads, num_rows),
    ]
    gate, mixed, step = weights.matrices(f"{prefix}ssm_in.weight", (num_rows, hidden), orders)
    factors = weights.array(f"{prefix}ssm_conv1d.weight", (num_channels, sizes.conv_width))
    bias = weights.optional_vector(f"{prefix}ssm_conv1d.bias", num_channels)
    if bias is None:
        bias = np.zeros(num_channels, dtype=np.float32)
    return Mamba2(
        norm=llama.build_norm(config, weights, f"{prefix}attn_norm.weight", hidden),
        mixed=Linear(mixed),
        gate=Linear(gate),
        step=Linear(step),
        convolution=np.ascontiguousarray(factors[channels].T),
        convolution_bias=bias[channels],
        decay_rate=-weights.vector(f"{prefix}ssm_a", num_heads),
        step_bias=weights.vector(f"{prefix}ssm_dt.bias", num_heads),
        skip=weights.vector(f"{prefix}ssm_d", num_heads),
        group_norm=llama.build_norm(config, weights, f"{prefix}ssm_norm.weight", value_size),
        output=Linear(weights.matrix(f"{prefix}ssm_out.weight", (hidden, value_size))),
        num_groups=sizes.num_groups,
        num_heads=num_heads,
        state_size=sizes.state_size,
        head_dim=sizes.head_dim,
        step_limits=sizes.step_limits,
    )


def _reversed_parts(value_size: int, key_size: int) -> IntArray:
    """Return where C, B and x, in this order, lie in [x, B, C]."""
    x, b, c = np.split(np.arange(value_size + 2 * key_size), [value_size, value_size + key_size])
    return np.concatenate([c, b, x])
