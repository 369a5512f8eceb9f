"""The recurrent layers of a tiny hybrid (Qwen3.5), for `model_files`."""

from typing import Any

NUM_KEY_HEADS, NUM_VALUE_HEADS, KEY_DIM, VALUE_DIM, CONV_WIDTH = 2, 4, 8, 16, 4
ATTENTION_EVERY = 4
"""Every fourth layer of the hybrid attends."""


def delta_net_config() -> dict[str, Any]:
    """Return what its config.json has beside the usual."""
    return {
        "linear_num_key_heads": NUM_KEY_HEADS,
        "linear_num_value_heads": NUM_VALUE_HEADS,
        "linear_key_head_dim": KEY_DIM,
        "linear_value_head_dim": VALUE_DIM,
        "linear_conv_kernel_dim": CONV_WIDTH,
        "full_attention_interval": ATTENTION_EVERY,
        "partial_rotary_factor": 0.5,
    }


def delta_net_parts(hidden_size: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """List the parts of a recurrent mixer: Hugging Face name, GGUF name, shape."""
    value_size = NUM_VALUE_HEADS * VALUE_DIM
    num_channels = 2 * NUM_KEY_HEADS * KEY_DIM + value_size
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "in_proj_qkv.weight": ("attn_qkv.weight", (num_channels, hidden_size)),
        "in_proj_z.weight": ("attn_gate.weight", (value_size, hidden_size)),
        "in_proj_b.weight": ("ssm_beta.weight", (NUM_VALUE_HEADS, hidden_size)),
        "in_proj_a.weight": ("ssm_alpha.weight", (NUM_VALUE_HEADS, hidden_size)),
        "conv1d.weight": ("ssm_conv1d.weight", (num_channels, 1, CONV_WIDTH)),
        "A_log": ("ssm_a", (NUM_VALUE_HEADS,)),
        "dt_bias": ("ssm_dt.bias", (NUM_VALUE_HEADS,)),
        "norm.weight": ("ssm_norm.weight", (VALUE_DIM,)),
        "out_proj.weight": ("ssm_out.weight", (hidden_size, value_size)),
    }
    return [(f"linear_attn.{name}", *rest) for name, rest in shapes.items()]
