"""A tiny random assistant for the tiny Gemma 4 of `model_files`, in both formats."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray
from safetensors.numpy import save_file

import model_files
from gemma4_files import GLOBAL_HEAD_DIM, ROTARY_SHARE, rope_divisors
from headlong.arrays import FloatArray
from headlong.drafters.assistant_drafter import AssistantDrafter
from headlong.heads.assistant import Gemma4Assistant
from headlong.heads.head_files import load_head
from headlong.models.transformer import Backbone

SIZE = 32
NUM_HEADS = 2
KINDS = ("sliding_attention", "full_attention")

Named = tuple[str, str, FloatArray]
"""A weight with its Hugging Face and its GGUF name."""


def assistant_tensors(seed: int = 0) -> list[Named]:
    """Make the weights of an assistant of two layers."""
    rng = np.random.default_rng([seed, 7])

    def normal(*shape: int) -> FloatArray:
        return np.asarray(1.5 * shape[-1] ** -0.5 * rng.standard_normal(shape), dtype=np.float32)

    def norm(size: int) -> FloatArray:
        return np.asarray(1 + 0.2 * rng.standard_normal(size), dtype=np.float32)

    hidden = model_files.HIDDEN_SIZE
    tensors: list[Named] = [
        ("model.embed_tokens.weight", "token_embd.weight", normal(model_files.VOCAB_SIZE, SIZE)),
        ("model.norm.weight", "output_norm.weight", norm(SIZE)),
        ("pre_projection.weight", "nextn.pre_projection.weight", normal(SIZE, 2 * hidden)),
        ("post_projection.weight", "nextn.post_projection.weight", normal(hidden, SIZE)),
    ]
    for layer, dim in enumerate((model_files.HEAD_DIM, GLOBAL_HEAD_DIM)):
        parts: list[Named] = [
            ("input_layernorm.weight", "attn_norm.weight", norm(SIZE)),
            ("self_attn.q_proj.weight", "attn_q.weight", normal(NUM_HEADS * dim, SIZE)),
            ("self_attn.q_norm.weight", "attn_q_norm.weight", norm(dim)),
            ("self_attn.o_proj.weight", "attn_output.weight", normal(SIZE, NUM_HEADS * dim)),
            ("post_attention_layernorm.weight", "post_attention_norm.weight", norm(SIZE)),
            ("pre_feedforward_layernorm.weight", "ffn_norm.weight", norm(SIZE)),
            ("mlp.gate_proj.weight", "ffn_gate.weight", normal(2 * SIZE, SIZE)),
            ("mlp.up_proj.weight", "ffn_up.weight", normal(2 * SIZE, SIZE)),
            ("mlp.down_proj.weight", "ffn_down.weight", normal(SIZE, 2 * SIZE)),
            ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", norm(SIZE)),
            ("layer_scalar", "layer_output_scale.weight", norm(1)),
        ]
        tensors += [
            (f"model.layers.{layer}.{hf_name}", f"blk.{layer}.{gguf_name}", values)
            for hf_name, gguf_name, values in parts
        ]
    return tensors


def assistant_config() -> dict[str, Any]:
    """Return its config.json, as published ones are."""
    full = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": ROTARY_SHARE}
    text = {
        "model_type": "gemma4_text",
        "hidden_size": SIZE,
        "intermediate_size": 2 * SIZE,
        "num_hidden_layers": len(KINDS),
        "num_kv_shared_layers": len(KINDS),
        "layer_types": list(KINDS),
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_HEADS,
        "head_dim": model_files.HEAD_DIM,
        "global_head_dim": GLOBAL_HEAD_DIM,
        "hidden_size_per_layer_input": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": model_files.SLIDING_WINDOW,
        "max_position_embeddings": model_files.CONTEXT_LENGTH,
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    return {
        "model_type": "gemma4_assistant",
        "architectures": ["Gemma4AssistantForCausalLM"],
        "backbone_hidden_size": model_files.HIDDEN_SIZE,
        "text_config": text,
    }


def write_assistant_folder(folder: Path, **extra: NDArray[Any]) -> Path:
    """Write it as a Hugging Face folder, with further tensors where they are given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(assistant_config()))
    tensors: dict[str, NDArray[Any]] = {name: array for name, _, array in assistant_tensors()}
    save_file(tensors | extra, folder / "model.safetensors")
    return folder


def write_assistant_gguf(path: Path) -> Path:
    """Write it as GGUF, as llama.cpp's converter does."""
    writer = GGUFWriter(path, "gemma4-assistant")
    writer.add_block_count(len(KINDS))
    writer.add_uint32("gemma4-assistant.nextn_predict_layers", len(KINDS))
    writer.add_context_length(model_files.CONTEXT_LENGTH)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(2 * SIZE)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    for dim, suffix in ((GLOBAL_HEAD_DIM, ""), (model_files.HEAD_DIM, "_swa")):
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            writer.add_uint32(f"gemma4-assistant.{name}{suffix}", dim)
    writer.add_rope_freq_base(1e6)
    writer.add_float32("gemma4-assistant.rope.freq_base_swa", 1e4)
    writer.add_sliding_window(model_files.SLIDING_WINDOW)
    writer.add_sliding_window_pattern([kind == KINDS[0] for kind in KINDS])
    writer.add_uint32("gemma4-assistant.attention.shared_kv_layers", len(KINDS))
    for _, name, values in assistant_tensors():
        writer.add_tensor(name, values)
    writer.add_tensor("rope_freqs.weight", rope_divisors())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assistant_maker(folder: Path) -> Callable[[Backbone], AssistantDrafter]:
    """Return what makes an assistant's drafter for a backbone."""
    written = write_assistant_folder(folder)

    def make(backbone: Backbone) -> AssistantDrafter:
        head = load_head(written, backbone)
        assert isinstance(head, Gemma4Assistant)
        return AssistantDrafter(head)

    return make
