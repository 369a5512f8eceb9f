"""EAGLE-3 heads as llama.cpp keeps them: a GGUF file of its own, of the architecture `eagle3`.

In:  such a file. Out: the `HeadWeights` that a head folder would have given.
Rows of query and key are put back into Hugging Face's order when the file is opened
(`weights/layout.py`); `d2t` holds backbone ids here, where folders hold offsets.
"""

import re
from dataclasses import replace
from typing import Any

from headlong.heads.eagle3 import LAYER
from headlong.heads.head_weights import QUANT_KEY, HeadWeights
from headlong.models.rope_scaling import read_gguf_scaling
from headlong.models.settings import Settings
from headlong.weights.checkpoint import Checkpoint

EAGLE3 = "eagle3"
DRAFT_IDS = "d2t"

_NAMES = {
    "enc.output_norm": "input_norm",
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_norm_2": "hidden_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.0\.(.+)")


def read_eagle3_gguf(checkpoint: Checkpoint) -> HeadWeights:
    """Return the head that a GGUF file holds."""
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        own_name = _name_in_folders(name)
        tensors[own_name] = replace(tensor, name=own_name)
    d2t = tensors.pop(DRAFT_IDS, None)
    return HeadWeights(
        "eagle3",
        _config(Settings(checkpoint.metadata, checkpoint.path).under(f"{EAGLE3}.")),
        tensors,
        None if d2t is None else d2t.to_int64().reshape(-1),
        source=str(checkpoint.path),
    )


def name_in_gguf(name: str) -> str:
    """Return what llama.cpp calls a tensor that a head folder calls `name`."""
    stem, dot, kind = name.rpartition(".")
    if stem.startswith(LAYER):
        part = stem.removeprefix(LAYER)
        return f"blk.0.{_swapped(_IN_LAYER).get(part, part)}{dot}{kind}"
    return f"{_swapped(_NAMES).get(stem, stem)}{dot}{kind}"


def _swapped(names: dict[str, str]) -> dict[str, str]:
    return {value: key for key, value in names.items()}


def _name_in_folders(name: str) -> str:
    stem, dot, kind = name.rpartition(".")
    match = _LAYER.fullmatch(stem)
    if match is not None:
        return f"{LAYER}{_IN_LAYER.get(match[1], match[1])}{dot}{kind}"
    return f"{_NAMES.get(stem, stem)}{dot}{kind}"


def _config(keys: Settings) -> dict[str, Any]:
    """Return what config.json would say."""
    num_heads, hidden_size = keys.integer("attention.head_count"), keys.integer("embedding_length")
    config: dict[str, Any] = {
        "num_hidden_layers": keys.integer("block_count"),
        "hidden_size": hidden_size,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", num_heads),
        "head_dim": keys.integer("attention.key_length", hidden_size // max(num_heads, 1)),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "target_hidden_size": keys.integer("target_hidden_size", hidden_size),
        "norm_before_residual": keys.flag("norm_before_residual"),
        "norm_before_fc": keys.flag("norm_before_fc"),
        "eagle_aux_hidden_state_layer_ids": keys.items("target_layers"),
    }
    if keys.has("vocab_size"):
        config["vocab_size"] = keys.integer("vocab_size")
    if keys.has(QUANT_KEY):
        config[QUANT_KEY] = keys.text(QUANT_KEY)
    scaling = read_gguf_scaling(keys.under("rope.scaling."))
    if scaling is not None:
        config["rope_scaling"] = {
            "rope_type": scaling.kind,
            "factor": scaling.factor,
            "beta_slow": scaling.low_frequency_factor,
            "beta_fast": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_context_length,
            "attention_factor": scaling.amplitude,
        }
    return config
