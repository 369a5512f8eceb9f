"""Configurations of tiny hybrids, as their publishers write them, for tiny_mtp_configs."""

from typing import Any

NEMOTRON_H: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 96,
    "hybrid_override_pattern": "M-ME*M*E",
    "num_hidden_layers": 8,
    "intermediate_size": 48,
    "head_dim": 16,
    "attention_bias": False,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "tie_word_embeddings": False,
    "layer_norm_epsilon": 1e-6,
    # Four heads to a group; the inner size is not the hidden size.
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 12,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_hidden_act": "silu",
    # transformers clamps prompts at this and single rows not at all; no one else does.
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
    "time_step_min": 1e-9,
    "chunk_size": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "moe_latent_size": 20,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}

NEMOTRON_H_TRAITS: dict[str, dict[str, Any]] = {
    "norm_eps": {"layer_norm_epsilon": 1e-2},
    "expert_scale": {"routed_scaling_factor": 1.0},
    "experts_chosen": {"num_experts_per_tok": 2},
}

MIMO_V2_FLASH: dict[str, Any] = {
    "model_type": "mimo_v2_flash",
    "architectures": ["MiMoV2FlashForCausalLM"],
    "vocab_size": 96,
    # The beginning of the published pattern, which transformers takes for granted.
    "num_hidden_layers": 7,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1],
    "moe_layer_freq": [0, 1, 1, 1, 1, 1, 1],
    "num_key_value_heads": 1,
    "swa_num_key_value_heads": 2,
    "head_dim": 24,
    "v_head_dim": 16,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000.0,
    "swa_rope_theta": 10000.0,
    "sliding_window": 8,
    "sliding_window_size": 8,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_value_scale": 0.707,
    "attention_bias": False,
    "hidden_act": "silu",
    "layernorm_epsilon": 1e-6,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": None,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}

MIMO_V2_FLASH_TRAITS: dict[str, dict[str, Any]] = {
    "window_one_less": {"sliding_window_size": 7},
    "value_scale": {"attention_value_scale": 1.0},
    "experts_chosen": {"num_experts_per_tok": 2},
}
