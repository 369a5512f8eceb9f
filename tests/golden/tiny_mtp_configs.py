"""The tiny checkpoints with an MTP layer: hybrids, mixtures of experts, latent attention."""

import torch
from tiny_configs import SIZES, TinyModel
from tiny_hybrids import MIMO_V2_FLASH, MIMO_V2_FLASH_TRAITS, NEMOTRON_H, NEMOTRON_H_TRAITS

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
LATENT_SIZES = SIZES | {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "rope_theta": 10000.0,
    "num_nextn_predict_layers": 1,
}

TINY_WITH_MTP = {
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
    "deepseek_v3": TinyModel(
        LATENT_SIZES
        | {
            "model_type": "deepseek_v3",
            "architectures": ["DeepseekV3ForCausalLM"],
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            # Both are 1 in V3 and 0.707 in V2; GGUF files say only the second.
            "rope_scaling": {
                "type": "yarn",
                "factor": 8.0,
                "mscale": 0.7,
                "mscale_all_dim": 0.7,
                "beta_fast": 32,
                "beta_slow": 1,
                "original_max_position_embeddings": 64,
            },
        },
        torch.bfloat16,
        {
            "rope_scaling": {"rope_scaling": None},
            "interleaved": {"rope_interleave": False},
            "groups": {"n_group": 1, "topk_group": 1},
            "scale": {"routed_scaling_factor": 1.0},
            "renormalised": {"norm_topk_prob": False},
        },
        mtp="layer",
    ),
    "deepseek_v2": TinyModel(
        LATENT_SIZES
        | {
            "model_type": "deepseek_v2",
            "architectures": ["DeepseekV2ForCausalLM"],
            "q_lora_rank": None,
            "num_nextn_predict_layers": 0,
            "scoring_func": "softmax",
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.5,
            "rope_scaling": None,
        },
        torch.float16,
        {"scale": {"routed_scaling_factor": 1.0}},
    ),
    "glm4_moe_lite": TinyModel(
        LATENT_SIZES
        | {
            "model_type": "glm4_moe_lite",
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "topk_method": "noaux_tc",
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.8,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "partial_rotary_factor": 1.0,
        },
        torch.bfloat16,
        {"rope_theta": {"rope_theta": 10000.0}, "interleaved": {"rope_interleave": False}},
        mtp="layer",
    ),
    "nemotron_h": TinyModel(SIZES | NEMOTRON_H, torch.float32, NEMOTRON_H_TRAITS, mtp="nemotron"),
    "mimo_v2_flash": TinyModel(
        SIZES | MIMO_V2_FLASH, torch.float32, MIMO_V2_FLASH_TRAITS, mtp="mimo"
    ),
}
