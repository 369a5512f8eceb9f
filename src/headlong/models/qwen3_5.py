"""Qwen3.5, Qwen3.6 and Qwen3-Next: three layers of gated delta net to one of gated attention.

Attention has norms on query and key heads, turns a part of each head with the position, and gates
its result; query and gate lie in one matrix, head by head. Channel parts are dense or have experts.
Norm weights arrive as 1 + w, decay rates as GGUF has them (see `weights/`). Recurrent projections
lie apart or, in Qwen3-Next, by key head in one matrix; GGUF files of Qwen3.5 have value heads in
another order. Images are not read.
"""

import numpy as np

from headlong.arrays import IntArray
from headlong.errors import ArchitectureError
from headlong.models import llama
from headlong.models.delta_config import DeltaNetConfig
from headlong.models.experts import build_channel
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, GatedDeltaNet, Layer, Linear, Norm, Rope
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Qwen3.5 backbone from a checkpoint's tensors."""
    return llama.build_frame(config, weights, ops, layer_builder(config, weights))


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer."""
    sizes = config.delta_net
    if sizes is None:
        raise ArchitectureError(
            f"A {config.architecture} model without the sizes of its recurrent layers.",
            "The model's metadata is damaged; pull the model again.",
        )
    rotary_dim = config.rotary_dim or config.head_dim
    rope = make_rope(rotary_dim, config.rope_theta, config.rope_scaling)

    def build_layer(index: int) -> Layer:
        prefix = f"blk.{index}."
        channel = build_channel(config, weights, index, "post_attention_norm")
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
    heads, channels = _head_order(sizes, 1), _channel_order(sizes)
    projections = _projections(sizes, weights, prefix, hidden_size)
    factors = weights.array(f"{prefix}ssm_conv1d.weight", (num_channels, sizes.conv_width))
    output_shape = (hidden_size, value_size)
    return GatedDeltaNet(
        norm=_norm(config, weights, f"{prefix}attn_norm"),
        mixed=projections[0],
        gate=projections[1],
        update=projections[2],
        decay=projections[3],
        convolution=np.ascontiguousarray(factors[channels].T),
        decay_rate=-weights.vector(f"{prefix}ssm_a", num_heads)[heads],
        decay_bias=weights.vector(f"{prefix}ssm_dt.bias", num_heads)[heads],
        head_norm=_norm(config, weights, f"{prefix}ssm_norm", sizes.value_dim),
        output=Linear(weights.matrix(f"{prefix}ssm_out.weight", output_shape)),
        num_key_heads=sizes.num_key_heads,
        num_value_heads=num_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        tiles_output=sizes.is_tiled,
    )


def _projections(
    sizes: DeltaNetConfig, weights: WeightReader, prefix: str, hidden_size: int
) -> list[Linear]:
    """Return the projections to queries, keys and values, to gates, updates and decays."""
    num_heads = sizes.num_value_heads
    value_size = num_heads * sizes.value_dim
    num_channels = 2 * sizes.num_key_heads * sizes.key_dim + value_size

    def matrices(name: str, orders: list[IntArray]) -> list[Linear]:
        shape = (sum(map(len, orders)), hidden_size)
        found = weights.matrices(f"{prefix}{name}.weight", shape, orders)
        return [Linear(matrix) for matrix in found]

    def whole(name: str, num_rows: int, order: IntArray) -> list[Linear]:
        if sizes.is_tiled:
            return matrices(name, [order])
        return [Linear(weights.matrix(f"{prefix}{name}.weight", (num_rows, hidden_size)))]

    each = num_heads // sizes.num_key_heads
    if weights.has(f"{prefix}ssm_in.weight"):
        parts = [sizes.key_dim, sizes.key_dim, each * sizes.value_dim, each * sizes.value_dim]
        *mixed, gate = _rows_by_key_head(sizes.num_key_heads, parts)
        wide = matrices("ssm_in", [np.concatenate(mixed), gate])
    else:
        gate_order = _head_order(sizes, sizes.value_dim)
        wide = [
            *whole("attn_qkv", num_channels, _channel_order(sizes)),
            *whole("attn_gate", value_size, gate_order),
        ]
    if weights.has(f"{prefix}ssm_ba.weight"):
        return [*wide, *matrices("ssm_ba", _rows_by_key_head(sizes.num_key_heads, [each, each]))]
    heads = _head_order(sizes, 1)
    return [*wide, *whole("ssm_beta", num_heads, heads), *whole("ssm_alpha", num_heads, heads)]


def _rows_by_key_head(num_key_heads: int, parts: list[int]) -> list[IntArray]:
    """Return each part's rows in a matrix that has the parts of one key head after another's."""
    rows = np.arange(num_key_heads * sum(parts)).reshape(num_key_heads, -1)
    return [part.reshape(-1) for part in np.split(rows, np.cumsum(parts)[:-1], axis=1)]


def _head_order(sizes: DeltaNetConfig, dim: int) -> IntArray:
    """Return where the rows of value heads lie that are to come key head by key head."""
    num_keys, num_values = sizes.num_key_heads, sizes.num_value_heads
    rows = np.arange(num_values * dim, dtype=np.int64)
    if sizes.is_tiled:
        rows = rows.reshape(-1, num_keys, dim).swapaxes(0, 1).reshape(-1)
    return rows


def _channel_order(sizes: DeltaNetConfig) -> IntArray:
    """Return the same for queries, keys and values."""
    num_shared = 2 * sizes.num_key_heads * sizes.key_dim
    values = num_shared + _head_order(sizes, sizes.value_dim)
    return np.concatenate([np.arange(num_shared, dtype=np.int64), values])


def _norm(config: ModelConfig, weights: WeightReader, name: str, size: int | None = None) -> Norm:
    return llama.build_norm(config, weights, f"{name}.weight", size or config.hidden_size)
