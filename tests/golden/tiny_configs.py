"""The tiny checkpoints: their configs in the form published ones have, and what each must show."""

from dataclasses import dataclass, field
from typing import Any

import torch

VOCAB_SIZE = 64
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

HYBRID = {
    "head_dim": 16,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    # Two value heads to a key head, sizes that differ from each other and from attention's.
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
CENTRED = ("gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
"""These store norm weights as their difference from one, but for one norm."""


@dataclass(frozen=True)
class TinyModel:
    """One checkpoint: its config as publishers write it, and the type its weights are stored in."""

    config: dict[str, Any]
    stored: torch.dtype
    traits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes of the config that must move the logits, or the folder would not test them."""
    mtp: str = ""
    """How its MTP layer is named, "qwen" or "layer"; empty for a model without one."""


TINY_MODELS = {
    "llama3-rope": TinyModel(
        SIZES
        | {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "head_dim": 16,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "rope_theta": 10000.0,
            # With head_dim 16 these keep one frequency, blend two and divide five.
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        torch.bfloat16,
        {
            "rope_scaling": {"rope_scaling": None},
            "linear_instead": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            "rope_theta": {"rope_theta": 20000.0},
        },
    ),
    "qwen2": TinyModel(
        SIZES
        | {
            "model_type": "qwen2",
            "architectures": ["Qwen2ForCausalLM"],
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "rope_theta": 1000000.0,
            "use_sliding_window": False,
            "sliding_window": 8,
            "max_window_layers": 2,
        },
        torch.float16,
        {"sliding_window": {"use_sliding_window": True}},
    ),
    "qwen3": TinyModel(
        SIZES
        | {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "head_dim": 16,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_theta": 1000000.0,
            "rope_scaling": None,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": 4,
        },
        torch.bfloat16,
        {"rope_theta": {"rope_theta": 10000.0}},
    ),
    "qwen3_5": TinyModel(
        SIZES
        | HYBRID
        | {
            "model_type": "qwen3_5_text",
            "architectures": ["Qwen3_5ForCausalLM"],
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
        },
        torch.float32,
        {
            "norm_eps": {"rms_norm_eps": 1e-2},
            "rotary_share": {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 1.0,
                    "mrope_section": [4, 2, 2],
                }
            },
        },
        mtp="qwen",
    ),
    "qwen3_5_moe": TinyModel(
        SIZES
        | HYBRID
        | EXPERTS
        | {
            "model_type": "qwen3_5_moe_text",
            "architectures": ["Qwen3_5MoeForCausalLM"],
            "mtp_num_hidden_layers": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
        },
        torch.float32,
        {"one_expert_more": {"num_experts_per_tok": 3}},
        mtp="qwen",
    ),
    "qwen3_next": TinyModel(
        SIZES
        | HYBRID
        | EXPERTS
        | {
            "model_type": "qwen3_next",
            "architectures": ["Qwen3NextForCausalLM"],
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 16,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
        torch.float32,
        {"shares": {"norm_topk_prob": False}, "rotary_share": {"partial_rotary_factor": 0.5}},
        mtp="qwen",
    ),
    "glm4_moe": TinyModel(
        SIZES
        | {
            "model_type": "glm4_moe",
            "architectures": ["Glm4MoeForCausalLM"],
            "head_dim": 16,
            "hidden_act": "silu",
            "attention_bias": True,
            "tie_word_embeddings": False,
            "use_qk_norm": True,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "num_nextn_predict_layers": 1,
        },
        torch.float32,
        {
            "scale": {"routed_scaling_factor": 1.0},
            "shares": {"norm_topk_prob": False},
            "groups": {"n_group": 1},
            "rotary_share": {"partial_rotary_factor": 1.0},
        },
        mtp="layer",
    ),
    "gemma3": TinyModel(
        SIZES
        | {
            "model_type": "gemma3_text",
            "architectures": ["Gemma3ForCausalLM"],
            "num_hidden_layers": 6,
            "num_key_value_heads": 1,
            "intermediate_size": 48,
            "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "tie_word_embeddings": True,
            # Not head_dim, as in the 27B model.
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "sliding_window_pattern": 3,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            # Of the global layers only, as in the 4B model and up.
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        torch.float32,
        {
            "window_one_more": {"sliding_window": 9},
            "window_one_less": {"sliding_window": 7},
            "sliding_pattern": {"sliding_window_pattern": 2},
            "rope_local_base_freq": {"rope_local_base_freq": 1000000.0},
            "rope_scaling": {"rope_scaling": None},
            "query_scale": {"query_pre_attn_scalar": 16},
        },
    ),
}
