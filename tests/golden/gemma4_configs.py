"""Configs of the tiny Gemma 4 models, as their publisher writes them, beside the usual sizes."""

from typing import Any

GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "intermediate_size": 48,
    "head_dim": 16,
    "global_head_dim": 24,
    "vocab_size_per_layer_input": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "sliding_window": 8,
    # Smaller than the published 30, so that it shows.
    "final_logit_softcapping": 4.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1000000.0,
            "partial_rotary_factor": 0.5,
        },
    },
}
GEMMA4_TRAITS: dict[str, dict[str, Any]] = {
    "window_one_more": {"sliding_window": 9},
    "window_one_less": {"sliding_window": 7},
    "norm_eps": {"rms_norm_eps": 1e-2},
    "logit_cap": {"final_logit_softcapping": None},
    "rotary_share": {
        "rope_parameters": {
            **GEMMA4["rope_parameters"],
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        }
    },
}

_OWN_KEYS: dict[str, Any] = {
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
}
_EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}
_SHARED: dict[str, Any] = {
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 8,
    "use_double_wide_mlp": True,
}

GEMMA4_MODELS: dict[str, dict[str, Any]] = {
    # As in the 31B model: keys of the full layers are their values, none are shared.
    "": GEMMA4 | _OWN_KEYS,
    # As in 26B-A4B.
    "-experts": GEMMA4 | _OWN_KEYS | _EXPERTS,
    # As in E2B and E4B: half of the layers read keys and values of layers 1 and 2.
    "-shared": GEMMA4 | _SHARED,
}
