"""A tiny MiMo-7B as it is published, with its MTP layer."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from headlong.arrays import FloatArray

VOCAB_SIZE, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 64, 32, 48, 4, 2, 8
THETA, EPS = 640_000.0, 1e-5
CONFIG = {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "mimo",
    "attention_bias": True,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "head_dim": HEAD_DIM,
    "intermediate_size": INNER,
    "max_position_embeddings": 256,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "num_key_value_heads": KV_HEADS,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": EPS,
    "rope_scaling": None,
    "rope_theta": THETA,
    "sliding_window": 16,
    "max_window_layers": 2,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB_SIZE,
}


def make_tensors(seed: int = 0) -> dict[str, FloatArray]:
    """Make the tensors of a tiny MiMo under their published names."""
    rng = np.random.default_rng(seed)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, HIDDEN),
        "self_attn.k_proj.weight": (keys, HIDDEN),
        "self_attn.v_proj.weight": (keys, HIDDEN),
        "self_attn.q_proj.bias": (queries,),
        "self_attn.k_proj.bias": (keys,),
        "self_attn.v_proj.bias": (keys,),
        "self_attn.o_proj.weight": (HIDDEN, queries),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    head = {
        "input_proj.weight": (HIDDEN, 2 * HIDDEN),
        "token_layernorm.weight": (HIDDEN,),
        "hidden_layernorm.weight": (HIDDEN,),
        "final_layernorm.weight": (HIDDEN,),
    }
    every = {
        "model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB_SIZE, HIDDEN),
        **{f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in shapes.items()},
        **{f"model.mtp_layers.0.{name}": shape for name, shape in (shapes | head).items()},
    }
    made: dict[str, FloatArray] = {}
    for name, shape in every.items():
        noise = rng.standard_normal(shape)
        if "norm" in name:
            values = 1 + 0.3 * noise
        else:
            values = 0.5 * noise if name.endswith("bias") else 1.5 * noise * shape[-1] ** -0.5
        made[name] = values.astype(np.float32)
    return made


def write_mimo(folder: Path) -> Path:
    """Write the model; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(make_tensors(), folder / "model.safetensors")
    return folder
