"""Tiny models with an MTP head inside their own checkpoint, under every published spelling."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import model_files
from headlong.arrays import FloatArray
from headlong.models.model_config import ModelConfig
from model_files import NUM_LAYERS, TinyTensor
from random_heads import nextn_arrays

QWEN = {
    "fc": "mtp.fc",
    "pre_fc_norm_embedding": "mtp.pre_fc_norm_embedding",
    "pre_fc_norm_hidden": "mtp.pre_fc_norm_hidden",
    "norm": "mtp.norm",
    "layers.0": "mtp.layers.0",
}
DEEPSEEK = {
    "fc": "model.layers.{n}.eh_proj",
    "pre_fc_norm_embedding": "model.layers.{n}.enorm",
    "pre_fc_norm_hidden": "model.layers.{n}.hnorm",
    "norm": "model.layers.{n}.shared_head.norm",
    "lm_head": "model.layers.{n}.shared_head.head",
    "embed_tokens": "model.layers.{n}.embed_tokens",
    "layers.0": "model.layers.{n}",
}
MIMO = {
    "fc": "model.mtp_layers.0.input_proj",
    "pre_fc_norm_embedding": "model.mtp_layers.0.token_layernorm",
    "pre_fc_norm_hidden": "model.mtp_layers.0.hidden_layernorm",
    "norm": "model.mtp_layers.0.final_layernorm",
    "layers.0": "model.mtp_layers.0",
}
GGUF = {
    "fc": "blk.{n}.nextn.eh_proj",
    "pre_fc_norm_embedding": "blk.{n}.nextn.enorm",
    "pre_fc_norm_hidden": "blk.{n}.nextn.hnorm",
    "norm": "blk.{n}.nextn.shared_head_norm",
    "layers.0.input_layernorm": "blk.{n}.attn_norm",
    "layers.0.self_attn.q_proj": "blk.{n}.attn_q",
    "layers.0.self_attn.k_proj": "blk.{n}.attn_k",
    "layers.0.self_attn.v_proj": "blk.{n}.attn_v",
    "layers.0.self_attn.o_proj": "blk.{n}.attn_output",
    "layers.0.self_attn.q_norm": "blk.{n}.attn_q_norm",
    "layers.0.self_attn.k_norm": "blk.{n}.attn_k_norm",
    "layers.0.post_attention_layernorm": "blk.{n}.ffn_norm",
    "layers.0.mlp.gate_proj": "blk.{n}.ffn_gate",
    "layers.0.mlp.up_proj": "blk.{n}.ffn_up",
    "layers.0.mlp.down_proj": "blk.{n}.ffn_down",
}
SPELLINGS = {"mtp": QWEN, "layer": DEEPSEEK, "mimo": MIMO}


def head_arrays(config: ModelConfig, layer: str = "llama") -> dict[str, FloatArray]:
    """Make the tensors of an MTP module under our spelling, the same every time."""
    return nextn_arrays(config, np.random.default_rng(12), layer)


def spell(
    arrays: Mapping[str, FloatArray], spelling: Mapping[str, str], block: int
) -> dict[str, FloatArray]:
    """Rename a module's tensors as a family publishes them."""
    spelled: dict[str, FloatArray] = {}
    for name, values in arrays.items():
        ours = max((part for part in spelling if name.startswith(f"{part}.")), key=len)
        spelled[spelling[ours].format(n=block) + name.removeprefix(ours)] = values
    return spelled


def write_folder_with(folder: Path, architecture: str, extra: Mapping[str, FloatArray]) -> Path:
    """Write a tiny Hugging Face model with more tensors beside its own."""
    with pytest.MonkeyPatch.context() as patch:
        _add_tensors(patch, architecture, extra)
        return model_files.write_hf_folder(folder, architecture)


def write_gguf_with(path: Path, architecture: str, extra: Mapping[str, FloatArray]) -> Path:
    """Write a tiny GGUF model with an MTP block behind its layers."""
    with pytest.MonkeyPatch.context() as patch:
        _add_tensors(patch, architecture, extra)
        patch.setitem(NUM_LAYERS, architecture, NUM_LAYERS[architecture] + 1)
        counted = {f"{architecture}.nextn_predict_layers": 1}
        return model_files.write_gguf(path, architecture, extra_metadata=counted)


def _add_tensors(
    patch: pytest.MonkeyPatch, architecture: str, extra: Mapping[str, FloatArray]
) -> None:
    tensors = model_files.tiny_tensors(architecture)
    tensors += [TinyTensor(name, name, values) for name, values in extra.items()]
    patch.setattr(model_files, "tiny_tensors", lambda *_: tensors)
