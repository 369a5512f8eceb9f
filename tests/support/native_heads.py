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
from tiny_text import CHATML, make_splitter, write_folder

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


def write_talking_folder(folder: Path) -> Path:
    """Write a tiny Qwen3.5 with an MTP layer, a byte-level tokenizer and a chat template.

    The layer is the backbone's last one, as attending as its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_files, "VOCAB_SIZE", 260)
        layer, hidden = NUM_LAYERS[model_files.HYBRID] - 1, model_files.HIDDEN_SIZE
        rng = np.random.default_rng(8)
        extra = {
            tensor.hf_name.replace(f"model.layers.{layer}.", "mtp.layers.0."): tensor.values
            for tensor in model_files.tiny_tensors(model_files.HYBRID)
            if tensor.hf_name.startswith(f"model.layers.{layer}.")
        }
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            extra[f"mtp.{name}.weight"] = rng.normal(0, 0.2, hidden).astype(np.float32)
        fused = rng.normal(0, 0.1, (hidden, 2 * hidden)).astype(np.float32)
        write_folder_with(folder, model_files.HYBRID, {**extra, "mtp.fc.weight": fused})
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    return write_folder(folder, make_splitter(), tokenizer_config=settings)
