"""What a tiny Gemma 4 has that other tiny models do not, for `model_files`.

It has the parts of all published sizes at once: layers that share keys and values, a number per
token and layer, and a wider MLP (E2B); keys of full layers that are their values (31B).
"""

from typing import Any

import numpy as np
from gguf import GGUFWriter

from headlong.arrays import FloatArray

GLOBAL_HEAD_DIM = 32
NUM_GLOBAL_KV_HEADS = 1
NUM_SHARED_LAYERS = 2
PER_LAYER_SIZE = 32
ROTARY_SHARE = 0.5
LOGIT_CAP = 6.0
FULL_EVERY = 3

Part = tuple[str, str, tuple[int, ...]]


def is_local(layer: int) -> bool:
    """Tell whether a layer has a sliding window."""
    return (layer + 1) % FULL_EVERY != 0


def is_shared(layer: int, num_layers: int) -> bool:
    """Tell whether a layer reads the keys and values of an earlier one."""
    return layer >= num_layers - NUM_SHARED_LAYERS


def gemma4_config(num_layers: int, window: int, vocab_size: int) -> dict[str, Any]:
    """Return what its config.json has beside the usual."""
    kinds = ["sliding_attention" if is_local(i) else "full_attention" for i in range(num_layers)]
    full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": ROTARY_SHARE}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "global_head_dim": GLOBAL_HEAD_DIM,
        "num_global_key_value_heads": NUM_GLOBAL_KV_HEADS,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": NUM_SHARED_LAYERS,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": PER_LAYER_SIZE,
        "vocab_size_per_layer_input": vocab_size,
        "final_logit_softcapping": LOGIT_CAP,
        "sliding_window": window,
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }


def gemma4_layer(config: dict[str, Any], layer: int) -> list[Part]:
    """List a layer's weights: Hugging Face name, GGUF name, shape."""
    hidden, num_heads = config["hidden_size"], config["num_attention_heads"]
    num_layers, local = config["num_hidden_layers"], is_local(layer)
    dim = config["head_dim"] if local else GLOBAL_HEAD_DIM
    keys = dim * (config["num_key_value_heads"] if local else NUM_GLOBAL_KV_HEADS)
    shared = is_shared(layer, num_layers)
    inner = config["intermediate_size"] * (2 if shared else 1)
    parts: list[Part] = [
        ("input_layernorm.weight", "attn_norm.weight", (hidden,)),
        ("self_attn.q_proj.weight", "attn_q.weight", (num_heads * dim, hidden)),
        ("self_attn.q_norm.weight", "attn_q_norm.weight", (dim,)),
        ("self_attn.o_proj.weight", "attn_output.weight", (hidden, num_heads * dim)),
        ("post_attention_layernorm.weight", "post_attention_norm.weight", (hidden,)),
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight", (hidden,)),
        ("mlp.gate_proj.weight", "ffn_gate.weight", (inner, hidden)),
        ("mlp.up_proj.weight", "ffn_up.weight", (inner, hidden)),
        ("mlp.down_proj.weight", "ffn_down.weight", (hidden, inner)),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", (hidden,)),
        ("per_layer_input_gate.weight", "inp_gate.weight", (PER_LAYER_SIZE, hidden)),
        ("per_layer_projection.weight", "proj.weight", (hidden, PER_LAYER_SIZE)),
        ("post_per_layer_input_norm.weight", "post_norm.weight", (hidden,)),
        ("layer_scalar", "layer_output_scale.weight", (1,)),
    ]
    if not shared:
        parts += [
            ("self_attn.k_proj.weight", "attn_k.weight", (keys, hidden)),
            ("self_attn.k_norm.weight", "attn_k_norm.weight", (dim,)),
        ]
    if not shared and local:
        parts.append(("self_attn.v_proj.weight", "attn_v.weight", (keys, hidden)))
    return parts


def gemma4_frame(config: dict[str, Any]) -> list[Part]:
    """List the weights outside the layers that only Gemma 4 has."""
    columns = config["num_hidden_layers"] * PER_LAYER_SIZE
    vocab_size, hidden = config["vocab_size"], config["hidden_size"]
    return [
        ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight", (vocab_size, columns)),
        ("per_layer_model_projection.weight", "per_layer_model_proj.weight", (columns, hidden)),
        ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight", (PER_LAYER_SIZE,)),
    ]


def rope_divisors() -> FloatArray:
    """Return what llama.cpp's converter writes instead of the share of rotary dimensions."""
    num_turning = int(GLOBAL_HEAD_DIM * ROTARY_SHARE / 2)
    rest = GLOBAL_HEAD_DIM // 2 - num_turning
    return np.array([1.0] * num_turning + [1e30] * rest, dtype=np.float32)


def add_gemma4_metadata(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """Write what llama.cpp's converter says of a Gemma 4, in its order."""
    num_layers, inner = config["num_hidden_layers"], config["intermediate_size"]
    layers = range(num_layers)
    local = [is_local(layer) for layer in layers]
    num_local = config["num_key_value_heads"]
    writer.add_head_count_kv([num_local if is_one else NUM_GLOBAL_KV_HEADS for is_one in local])
    writer.add_feed_forward_length(
        [inner * (2 if is_shared(layer, num_layers) else 1) for layer in layers]
    )
    writer.add_key_length(GLOBAL_HEAD_DIM)
    writer.add_value_length(GLOBAL_HEAD_DIM)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(GLOBAL_HEAD_DIM)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(1e4)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(local)
    writer.add_shared_kv_layers(NUM_SHARED_LAYERS)
    writer.add_embedding_length_per_layer_input(PER_LAYER_SIZE)
    writer.add_final_logit_softcapping(LOGIT_CAP)
