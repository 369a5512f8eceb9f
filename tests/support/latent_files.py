"""The tiny model with latent attention: a dense layer, then experts in groups, in both formats.

Its GGUF side is laid out as llama.cpp's converter does it: `kv_b` split and one half of it turned,
experts in stacks.
"""

from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter, RopeScalingType

from headlong.arrays import FloatArray

QUERY_RANK, RANK = 32, 64
PLAIN_DIM, ROTARY_DIM, VALUE_DIM = 32, 16, 32
EXPERT_SIZE, NUM_EXPERTS, NUM_CHOSEN, NUM_GROUPS = 32, 8, 3, 4
ROUTED_SCALE = 1.5

Part = tuple[str, str, tuple[int, ...]]


def latent_config(num_heads: int) -> dict[str, Any]:
    """Return what config.json says beside the usual numbers."""
    return {
        "num_key_value_heads": num_heads,
        "head_dim": ROTARY_DIM,
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": RANK,
        "qk_nope_head_dim": PLAIN_DIM,
        "qk_rope_head_dim": ROTARY_DIM,
        "v_head_dim": VALUE_DIM,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": EXPERT_SIZE,
        "n_routed_experts": NUM_EXPERTS,
        "num_experts_per_tok": NUM_CHOSEN,
        "n_shared_experts": 2,
        "n_group": NUM_GROUPS,
        "topk_group": 2,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": ROUTED_SCALE,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale_all_dim": 1.0,
            "attention_factor": 1.25,
        },
    }


def latent_layer(layer: int, hidden: int, num_heads: int, inner: int) -> list[Part]:
    """List a layer's weights as Hugging Face names and shapes them; GGUF's names are rough."""
    queries = num_heads * (PLAIN_DIM + ROTARY_DIM)
    both = num_heads * (PLAIN_DIM + VALUE_DIM)
    parts: list[Part] = [
        ("input_layernorm.weight", "attn_norm.weight", (hidden,)),
        ("self_attn.q_a_proj.weight", "attn_q_a.weight", (QUERY_RANK, hidden)),
        ("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", (QUERY_RANK,)),
        ("self_attn.q_b_proj.weight", "attn_q_b.weight", (queries, QUERY_RANK)),
        (
            "self_attn.kv_a_proj_with_mqa.weight",
            "attn_kv_a_mqa.weight",
            (RANK + ROTARY_DIM, hidden),
        ),
        ("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", (RANK,)),
        ("self_attn.kv_b_proj.weight", "attn_kv_b.weight", (both, RANK)),
        ("self_attn.o_proj.weight", "attn_output.weight", (hidden, num_heads * VALUE_DIM)),
        ("post_attention_layernorm.weight", "ffn_norm.weight", (hidden,)),
    ]
    if layer == 0:
        return parts + _mlp("mlp", "ffn_{}", inner, hidden)
    for number in range(NUM_EXPERTS):
        parts += _mlp(f"mlp.experts.{number}", f"ffn_{{}}_exps.{number}", EXPERT_SIZE, hidden)
    return [
        *parts,
        *_mlp("mlp.shared_experts", "ffn_{}_shexp", 2 * EXPERT_SIZE, hidden),
        ("mlp.gate.weight", "ffn_gate_inp.weight", (NUM_EXPERTS, hidden)),
        ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", (NUM_EXPERTS,)),
    ]


def _mlp(hf_name: str, gguf_name: str, inner: int, hidden: int) -> list[Part]:
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    return [
        (f"{hf_name}.{kind}_proj.weight", f"{gguf_name.format(kind)}.weight", shape)
        for kind, shape in shapes.items()
    ]


def latent_gguf(named: dict[str, FloatArray], num_heads: int) -> dict[str, FloatArray]:
    """Return all weights as GGUF files hold them: heads' matrices apart, experts in stacks."""
    out: dict[str, FloatArray] = {}
    for name, values in named.items():
        stem, _, number = name.removesuffix(".weight").partition("_exps.")
        if number:
            if number == "0":
                stack = [named[f"{stem}_exps.{i}.weight"] for i in range(NUM_EXPERTS)]
                out[f"{stem}_exps.weight"] = np.stack(stack)
        elif "attn_kv_b" in name:
            heads = values.reshape(num_heads, PLAIN_DIM + VALUE_DIM, RANK)
            turned = heads[:, :PLAIN_DIM].swapaxes(1, 2)
            out[name.replace("kv_b", "k_b")] = np.ascontiguousarray(turned)
            out[name.replace("kv_b", "v_b")] = np.ascontiguousarray(heads[:, PLAIN_DIM:])
        else:
            out[name] = values
    return out


def add_latent_metadata(writer: GGUFWriter) -> None:
    """Write what a GGUF file says beside the usual numbers, over them where they differ."""
    writer.add_head_count_kv(1)
    writer.add_key_length(RANK + ROTARY_DIM)
    writer.add_value_length(RANK)
    writer.add_q_lora_rank(QUERY_RANK)
    writer.add_kv_lora_rank(RANK)
    writer.add_key_length_mla(PLAIN_DIM + ROTARY_DIM)
    writer.add_value_length_mla(VALUE_DIM)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_feed_forward_length(EXPERT_SIZE)
    writer.add_expert_count(NUM_EXPERTS)
    writer.add_expert_used_count(NUM_CHOSEN)
    writer.add_expert_shared_count(2)
    writer.add_expert_group_count(NUM_GROUPS)
    writer.add_expert_group_used_count(2)
    writer.add_expert_weights_scale(ROUTED_SCALE)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(64)
    writer.add_rope_scaling_yarn_log_mul(0.1)
    writer.add_rope_scaling_yarn_attn_factor(1.25)
