"""The tiny checkpoints with latent attention."""

import torch
from tiny_configs import SIZES, TinyModel

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

LATENT_MODELS = {
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
}
