"""Golden folders written as GGUF files, as llama.cpp's converter lays them out.

Names and layouts are written out by hand, and were held against the converter's own files. Those
of Nemotron also interleave q and k rows, which changes nothing where nothing turns.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter
from safetensors.numpy import load_file

from golden_models import GOLDEN
from headlong.arrays import FloatArray
from model_files import MAMBA

_FRAME = {
    "backbone.embeddings.weight": "token_embd.weight",
    "backbone.norm_f.weight": "output_norm.weight",
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_AROUND_MTP = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "final_layernorm": "nextn.shared_head_norm",
}
_ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
_NEMOTRON = {
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.norm": "ssm_norm",
    "mixer.out_proj": "ssm_out",
    "mixer.up_proj": "ffn_up",
    "mixer.down_proj": "ffn_down",
    "mixer.gate": "ffn_gate_inp",
    "mixer.experts.up_proj": "ffn_up_exps",
    "mixer.experts.down_proj": "ffn_down_exps",
    "mixer.shared_experts.up_proj": "ffn_up_shexp",
    "mixer.shared_experts.down_proj": "ffn_down_shexp",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
    **{f"mixer.{theirs}": ours for theirs, ours in _ATTENTION.items()},
    **_AROUND_MTP,
}
_MIMO = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_mlp_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.{kind}_proj": f"ffn_{kind}" for kind in ("gate", "up", "down")},
    **{f"mlp.experts.{kind}_proj": f"ffn_{kind}_exps" for kind in ("gate", "up", "down")},
    **{f"self_attn.{theirs}": ours for theirs, ours in _ATTENTION.items()},
    **_AROUND_MTP,
    "final_layernorm": "layer_output_norm",
}
_WHOLE_NAMES = {
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "self_attn.attention_sink_bias": "attn_sinks.weight",
}
_LAYER = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.(.+)")
_MTP_LAYER = re.compile(r"(?:model\.)?mtp\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)(\..+)")


def write_golden_gguf(path: Path, name: str) -> Path:
    """Write a golden folder as a GGUF file in float32."""
    config: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text())
    is_mamba = name == MAMBA
    num_layers = config["num_hidden_layers"]
    writer = GGUFWriter(path, "nemotron_h_moe" if is_mamba else "mimo2")
    _add_shared_metadata(writer, config)
    (_add_nemotron_metadata if is_mamba else _add_mimo_metadata)(writer, config)
    stacks: dict[str, list[FloatArray]] = {}
    for own, values in load_file(GOLDEN / name / "model.safetensors").items():
        expert = _EXPERT.fullmatch(own)
        merged = f"{expert[1]}{expert[3]}" if expert else own
        gguf_name = _gguf_name(merged, num_layers, is_mamba)
        if expert:
            stacks.setdefault(gguf_name, []).append(values)  # in order of their numbers below ten
        else:
            writer.add_tensor(gguf_name, _laid_out(gguf_name, values, config))
    for gguf_name, matrices in stacks.items():
        writer.add_tensor(gguf_name, np.stack(matrices))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str, num_layers: int, is_mamba: bool) -> str:
    if name in _FRAME:
        return _FRAME[name]
    match, mtp = _LAYER.fullmatch(name), _MTP_LAYER.fullmatch(name)
    found = match or mtp
    assert found is not None, name
    block, rest = int(found[1]), found[2]
    if mtp:
        if is_mamba and (block, rest) == (1, "norm.weight"):
            return f"blk.{num_layers}.post_attention_norm.weight"
        block = num_layers + (0 if is_mamba else block)
    if rest in _WHOLE_NAMES:
        return f"blk.{block}.{_WHOLE_NAMES[rest]}"
    stem, _, kind = rest.rpartition(".")
    return f"blk.{block}.{(_NEMOTRON if is_mamba else _MIMO)[stem]}.{kind}"


def _laid_out(gguf_name: str, values: FloatArray, config: dict[str, Any]) -> FloatArray:
    if gguf_name.endswith("ssm_a"):
        return -np.exp(values)[:, None]
    if gguf_name.endswith("ssm_d"):
        return values[:, None]
    if "ssm_norm" in gguf_name:
        return values.reshape(config["n_groups"], -1)
    return values[:, 0] if values.ndim == 3 else values


def _add_shared_metadata(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config.get("v_head_dim", config["head_dim"]))
    writer.add_rope_dimension_count(8)
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)


def _add_nemotron_metadata(writer: GGUFWriter, config: dict[str, Any]) -> None:
    kinds = config["hybrid_override_pattern"] + "X"  # the MTP block has both parts
    heads, inner = config["num_key_value_heads"], config["moe_intermediate_size"]
    # The converter knows no dense MLPs beside experts, and gives them no size.
    sizes = {"E": inner, "X": inner, "-": config["intermediate_size"]}
    writer.add_block_count(len(kinds))
    writer.add_nextn_predict_layers(1)
    writer.add_head_count_kv([heads if kind in "*X" else 0 for kind in kinds])
    writer.add_feed_forward_length([sizes.get(kind, 0) for kind in kinds])
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_uint32("nemotron_h_moe.moe_latent_size", config["moe_latent_size"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])


def _add_mimo_metadata(writer: GGUFWriter, config: dict[str, Any]) -> None:
    pattern = [*config["hybrid_layer_pattern"], 1, 1, 1]
    heads = (config["num_key_value_heads"], config["swa_num_key_value_heads"])
    writer.add_block_count(len(pattern))
    writer.add_nextn_predict_layers(3)
    writer.add_head_count_kv([heads[kind] for kind in pattern])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_float32("mimo2.rope.freq_base_swa", config["swa_rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_array("mimo2.attention.sliding_window_pattern", pattern)
    writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
