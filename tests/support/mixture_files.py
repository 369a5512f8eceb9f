"""The mixture of experts of the tiny model of GLM-4.5's kind, in both formats."""

from typing import Any

from gguf import GGUFWriter

NUM_EXPERTS, NUM_CHOSEN, EXPERT_SIZE, SHARED_SIZE = 8, 2, 32, 32
NUM_GROUPS, NUM_CHOSEN_GROUPS, EXPERT_SCALE = 4, 2, 1.5


def mixture_config() -> dict[str, Any]:
    """Return what config.json says beside the usual numbers."""
    return {
        "n_routed_experts": NUM_EXPERTS,
        "num_experts_per_tok": NUM_CHOSEN,
        "moe_intermediate_size": EXPERT_SIZE,
        "n_shared_experts": SHARED_SIZE // EXPERT_SIZE,
        "n_group": NUM_GROUPS,
        "topk_group": NUM_CHOSEN_GROUPS,
        "norm_topk_prob": True,
        "routed_scaling_factor": EXPERT_SCALE,
        "first_k_dense_replace": 1,
        "partial_rotary_factor": 0.5,
    }


def expert_parts(hidden: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """List the parts of a mixture of experts; gate and up lie in one stack in both formats."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "gate.weight": ("ffn_gate_inp.weight", (NUM_EXPERTS, hidden)),
        "gate.e_score_correction_bias": ("exp_probs_b.bias", (NUM_EXPERTS,)),
        "experts.gate_up_proj": (
            "ffn_gate_up_exps.weight",
            (NUM_EXPERTS, 2 * EXPERT_SIZE, hidden),
        ),
        "experts.down_proj": ("ffn_down_exps.weight", (NUM_EXPERTS, hidden, EXPERT_SIZE)),
        "shared_experts.gate_proj.weight": ("ffn_gate_shexp.weight", (SHARED_SIZE, hidden)),
        "shared_experts.up_proj.weight": ("ffn_up_shexp.weight", (SHARED_SIZE, hidden)),
        "shared_experts.down_proj.weight": ("ffn_down_shexp.weight", (hidden, SHARED_SIZE)),
    }
    return [(f"mlp.{name}", *rest) for name, rest in shapes.items()]


def add_mixture_metadata(writer: GGUFWriter) -> None:
    """Write what a GGUF file says beside the usual numbers."""
    writer.add_expert_count(NUM_EXPERTS)
    writer.add_expert_used_count(NUM_CHOSEN)
    writer.add_expert_feed_forward_length(EXPERT_SIZE)
    writer.add_expert_shared_count(SHARED_SIZE // EXPERT_SIZE)
    writer.add_expert_group_count(NUM_GROUPS)
    writer.add_expert_group_used_count(NUM_CHOSEN_GROUPS)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(EXPERT_SCALE)
    writer.add_leading_dense_block_count(1)
