"""MTP tensors: from the one spelling back to the names under which each family publishes them.

In:  an architecture, a canonical name, how many layers the backbone has.
Out: the name in safetensors files, of which `tensor_names` makes the canonical one again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headlong.errors import TensorError
from headlong.weights.tensor_names import canonical_names

_NAME = re.compile(
    r"blk\.(?P<block>\d{1,4})\.(?P<part>[\w.]+?)(?:\.(?P<expert>\d{1,4}))?\.(?P<kind>weight|bias)"
)

_ATTENTION = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_output": "o_proj",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_q_a": "q_a_proj",
    "attn_q_a_norm": "q_a_layernorm",
    "attn_q_b": "q_b_proj",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_a_norm": "kv_a_layernorm",
    "attn_kv_b": "kv_b_proj",
}
_CHANNEL = {
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
    "ffn_gate_exps": "experts.{expert}.gate_proj",
    "ffn_up_exps": "experts.{expert}.up_proj",
    "ffn_down_exps": "experts.{expert}.down_proj",
    "ffn_gate_shexp": "shared_experts.gate_proj",
    "ffn_up_shexp": "shared_experts.up_proj",
    "ffn_down_shexp": "shared_experts.down_proj",
    "ffn_gate_inp": "gate",
}
_LAYER = {
    "attn_norm": "input_layernorm.{kind}",
    "ffn_norm": "post_attention_layernorm.{kind}",
    "post_attention_norm": "post_attention_layernorm.{kind}",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    **{part: f"self_attn.{name}.{{kind}}" for part, name in _ATTENTION.items()},
    **{part: f"mlp.{name}.{{kind}}" for part, name in _CHANNEL.items()},
}


@dataclass(frozen=True, slots=True)
class MtpSpelling:
    """How a family publishes its MTP layers."""

    model_type: str
    """As config.json says it."""
    count_key: str
    """The key of config.json that says how many there are."""
    names: Mapping[str, str]
    """By the part that follows `blk.N.` in the canonical name."""


def _around(prefix: str, *names: str) -> dict[str, str]:
    """Spell what lies around a layer: projection, both norms before it, the one behind it."""
    parts = ("eh_proj", "enorm", "hnorm", "shared_head_norm", "shared_head_head", "embed_tokens")
    spelled = {part: f"{prefix}{name}.{{kind}}" for part, name in zip(parts, names, strict=False)}
    return {f"nextn.{part}": name for part, name in spelled.items()}


def _within(prefix: str, layer: Mapping[str, str]) -> dict[str, str]:
    return {part: prefix + name for part, name in layer.items()}


_QWEN_LAYER = {
    part: name.replace("shared_experts", "shared_expert") for part, name in _LAYER.items()
} | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate.{kind}"}
_QWEN_AROUND = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
_QWEN = {**_within("mtp.layers.{module}.", _QWEN_LAYER), **_around("mtp.", *_QWEN_AROUND)}

_DEEPSEEK_AROUND = ("eh_proj", "enorm", "hnorm", "shared_head.norm", "shared_head.head")
_DEEPSEEK = {
    **_within("model.layers.{block}.", _LAYER),
    **_around("model.layers.{block}.", *_DEEPSEEK_AROUND, "embed_tokens"),
}

_MIMO2_LAYER = _LAYER | {
    "ffn_norm": "pre_mlp_layernorm.{kind}",
    "attn_sinks": "self_attn.attention_sink_bias",
}
_MIMO2 = {
    **_within("model.mtp.layers.{module}.", _MIMO2_LAYER),
    **_around("model.mtp.layers.{module}.", "eh_proj", "enorm", "hnorm", "final_layernorm"),
}

_MIMO_AROUND = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
_MIMO = {
    **_within("model.mtp_layers.{module}.", _LAYER),
    **_around("model.mtp_layers.{module}.", *_MIMO_AROUND),
}

# A module is a pattern of layers: one for attention, one for experts.
_NEMOTRON = {
    "attn_norm": "mtp.layers.0.norm.{kind}",
    "post_attention_norm": "mtp.layers.1.norm.{kind}",
    "exp_probs_b": "mtp.layers.1.mixer.gate.e_score_correction_bias",
    "ffn_latent_down": "mtp.layers.1.mixer.fc1_latent_proj.{kind}",
    "ffn_latent_up": "mtp.layers.1.mixer.fc2_latent_proj.{kind}",
    **{part: f"mtp.layers.0.mixer.{name}.{{kind}}" for part, name in _ATTENTION.items()},
    **{part: f"mtp.layers.1.mixer.{name}.{{kind}}" for part, name in _CHANNEL.items()},
    **_around("mtp.layers.0.", "eh_proj", "enorm", "hnorm"),
    "nextn.shared_head_norm": "mtp.layers.1.final_layernorm.{kind}",
}

_QWEN_COUNT, _COUNT = "mtp_num_hidden_layers", "num_nextn_predict_layers"
SPELLINGS = {
    "qwen35": MtpSpelling("qwen3_5_text", _QWEN_COUNT, _QWEN),
    "qwen35moe": MtpSpelling("qwen3_5_moe_text", _QWEN_COUNT, _QWEN),
    "qwen3next": MtpSpelling("qwen3_next", _QWEN_COUNT, _QWEN),
    "deepseek2": MtpSpelling("deepseek_v3", _COUNT, _DEEPSEEK),
    "glm4moe": MtpSpelling("glm4_moe", _COUNT, _DEEPSEEK),
    "mimo": MtpSpelling("mimo", _COUNT, _MIMO),
    "mimo2": MtpSpelling("mimo_v2_flash", _COUNT, _MIMO2),
    "nemotron_h": MtpSpelling("nemotron_h", _COUNT, _NEMOTRON),
    "nemotron_h_moe": MtpSpelling("nemotron_h", _COUNT, _NEMOTRON),
}
"""By GGUF's name of the architecture."""


def published_names(architecture: str, names: list[str], num_layers: int) -> dict[str, str]:
    """Return under which name a family publishes each tensor; refuse one it has no name for."""
    patterns = SPELLINGS[architecture].names
    published: dict[str, str] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        pattern = None if match is None else patterns.get(match["part"])
        if match is not None and pattern is not None:
            block = int(match["block"])
            published[name] = pattern.format(
                block=block, module=block - num_layers, expert=match["expert"], kind=match["kind"]
            )
    read_as = canonical_names(architecture, set(published.values()), num_layers)
    strange = [name for name in names if read_as.get(published.get(name, "")) != name]
    if strange:
        raise TensorError(
            f"{architecture} models publish their MTP layers without {strange[0]} "
            f"({len(strange)} such tensors).",
            "The file's MTP layers are of another kind than those converted here.",
        )
    return published
