"""Write tiny random checkpoints and the logits transformers computes from them.

Out go folders `tiny-<name>/` with model.safetensors, config.json in the form published checkpoints
have, config.v5.json in the form transformers 5 saves, and golden.json. Each covers what the real
files at hand do not: rotary scaling, q/k norms, biases, a sliding window that is really left.
Nothing of Headlong is imported here. The tests read the folders and never run this script.
"""

import argparse
import copy
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from make_golden import dumps, made_with
from native_mtp import add_mtp_layer
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 64
TOKEN_IDS = [
    *[1, 17, 42, 42, 5, 63, 30, 8, 17, 42, 0, 59],
    *[22, 11, 36, 5, 63, 2, 48, 19, 7, 55, 33, 26],
]
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


@dataclass(frozen=True)
class TinyModel:
    """One checkpoint: its config as publishers write it, and the type its weights are stored in."""

    config: dict[str, Any]
    stored: torch.dtype
    traits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes of the config that must move the logits, or the folder would not test them."""
    mtp: str = ""
    """How its MTP layer is named, "qwen" or "layer"; empty for a model without one."""


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
        | {
            "model_type": "qwen3_5_text",
            "architectures": ["Qwen3_5ForCausalLM"],
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
            "mtp_num_hidden_layers": 1,
            "layer_types": [*["linear_attention"] * 3, "full_attention"],
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


def randomise(model: Any, stored: torch.dtype) -> None:
    """Give every weight a size at which it matters, rounded to the stored type."""
    generator = torch.Generator().manual_seed(0)
    biases = [(name, one) for name, one in model.named_buffers() if name.endswith("_bias")]
    for name, weight in sorted([*model.named_parameters(), *biases]):
        noise = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            # Gemma3 and Qwen3.5 store norm weights as their difference from one, but for one norm.
            is_centred = model.config.model_type in ("gemma3_text", "qwen3_5_text")
            centre = 0.0 if is_centred and "linear_attn" not in name else 1.0
            value = centre + 0.3 * noise
        elif name.endswith("A_log"):
            value = noise - 1  # memories that last from one row to ten
        elif name.endswith("bias"):
            value = 0.5 * noise
        elif "embed" in name:
            value = noise * weight.shape[1] ** -0.5
        else:
            # Louder than 1/sqrt(inputs), so that attention is far from uniform.
            value = 1.5 * noise * weight.shape[1] ** -0.5
        weight.data.copy_(value.to(stored))


def make_config(fields: dict[str, Any]) -> Any:
    """Return the transformers config of published fields."""
    # transformers writes into the dicts it is given.
    return AutoConfig.for_model(**copy.deepcopy(fields))


def load(folder: Path, config: dict[str, Any]) -> Any:
    """Load the weights of a folder with a config, as float32."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=make_config(config), dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def compute_logits(model: Any) -> torch.Tensor:
    """Return the (N, V) logits of the fixed input."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([TOKEN_IDS]), use_cache=False).logits[0]
    return logits


def write_tiny_model(folder: Path, tiny: TinyModel) -> None:
    """Write one folder and check that each trait of it can be seen in the logits."""
    shutil.rmtree(folder, ignore_errors=True)
    model = AutoModelForCausalLM.from_config(make_config(tiny.config), dtype=torch.float32)
    randomise(model, tiny.stored)
    model.to(tiny.stored).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    (folder / "generation_config.json").unlink()
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Left over from the published form; without it the layer types have to be read.
    saved.pop("sliding_window_pattern", None)
    (folder / "config.v5.json").write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")
    dtype = str(tiny.stored).removeprefix("torch.")
    published = tiny.config | {"torch_dtype": dtype}
    (folder / "config.json").write_text(json.dumps(published, indent=2) + "\n", encoding="utf-8")

    logits = compute_logits(load(folder, published))
    if not torch.equal(logits, compute_logits(load(folder, saved))):
        raise ValueError(f"{folder.name}: the two forms of the config do not mean the same")
    effects = {
        name: float((compute_logits(load(folder, published | change)) - logits).abs().max())
        for name, change in tiny.traits.items()
    }
    weak = [name for name, effect in effects.items() if effect < 0.01]
    if weak:
        raise ValueError(f"{folder.name}: the logits do not depend on {weak}; change the sizes")
    drafts: list[dict[str, Any]] = []
    if tiny.mtp:
        loaded = load(folder, published)
        drafts = add_mtp_layer(
            folder, loaded, tiny.mtp, lambda mtp: randomise(mtp, tiny.stored), TOKEN_IDS
        )
    golden = {
        "made_with": made_with() | {"dtype": "float32", "attention": "eager"},
        "token_ids": TOKEN_IDS,
        "effects": {name: float(f"{effect:.3g}") for name, effect in effects.items()},
        "logits": [[float(f"{x:.6g}") for x in row] for row in logits.tolist()],
        "drafts": drafts,
    }
    (folder / "golden.json").write_text(dumps(golden) + "\n", encoding="utf-8")


def main() -> None:
    """Write all folders below the one named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the folder that gets the tiny-<name> folders")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, tiny in TINY_MODELS.items():
        write_tiny_model(arguments.output / f"tiny-{name}", tiny)


if __name__ == "__main__":
    main()
