"""Tiny random models on disk, the same weights as a Hugging Face folder and as a GGUF file.

Names are written out by hand for both formats, and the GGUF side is laid out as llama.cpp's
converter does it (q/k rows of llama interleaved, 1 added to Gemma norms), so that the readers are
held against something they did not make themselves.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import save_file

from delta_net_files import ATTENTION_EVERY, delta_net_config, delta_net_parts
from gemma4_files import (
    add_gemma4_metadata,
    gemma4_config,
    gemma4_frame,
    gemma4_layer,
    rope_divisors,
)
from headlong.arrays import FloatArray
from latent_files import add_latent_metadata, latent_config, latent_gguf, latent_layer
from mixture_files import add_mixture_metadata, expert_parts, mixture_config

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
"""Dense ones, that heads of their own are made for; written in both formats."""

MIXTURE = "glm4moe"
"""One with experts; in both formats."""

HYBRID = "qwen35"
"""Recurrent and attending layers; written as a Hugging Face folder only."""

MAMBA, SINKS = "tiny-nemotron_h", "tiny-mimo_v2_flash"
FROM_GOLDEN = (MAMBA, SINKS)
"""Folders of tests/golden: layers of one part each with Mamba-2; heads of two sizes with sinks."""

HYBRIDS = (HYBRID, f"{HYBRID}@native", MAMBA, f"{MAMBA}@native")
"""The same on both backends, as the fixture `tiny_backbone` names them."""

GEMMA4 = "gemma4"
"""Layers of two sizes, some of which share keys and values (`gemma4_files`); in both formats."""

LATENT = "deepseek2"
"""Latent attention, and experts behind a dense layer (`latent_files`); in both formats."""

BOTH_FORMATS = (*ARCHITECTURES, GEMMA4, MIXTURE, LATENT)

EVERY_BACKBONE = (
    *BOTH_FORMATS,
    *(f"{name}@native" for name in BOTH_FORMATS),
    *HYBRIDS,
    SINKS,
    f"{SINKS}@native",
    "mlx-qwen3@native",
)
"""Every architecture on the numpy and on the native backend, and one as mlx-lm converts it."""

HIDDEN_SIZE = 64
INTERMEDIATE_SIZE = 96
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_DIM = 16
VOCAB_SIZE = 96
CONTEXT_LENGTH = 512
SLIDING_WINDOW = 8

NUM_LAYERS = {
    "llama": 3,
    "qwen2": 2,
    "qwen3": 2,
    "gemma3": 6,
    HYBRID: 4,
    GEMMA4: 5,
    MIXTURE: 3,
    LATENT: 3,
}
"""Gemma3 has six, since in GGUF files every sixth layer is the global one."""

TIED = ("qwen2", "gemma3", GEMMA4)
"""Architectures whose tiny model has no `lm_head` of its own."""

_HF_CLASSES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    MIXTURE: ("glm4_moe", "Glm4MoeForCausalLM"),
    HYBRID: ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    GEMMA4: ("gemma4_text", "Gemma4ForCausalLM"),
    LATENT: ("deepseek_v3", "DeepseekV3ForCausalLM"),
}


@dataclass(frozen=True, slots=True)
class TinyTensor:
    """One weight, as Hugging Face stores it, under both its names."""

    hf_name: str
    gguf_name: str
    values: FloatArray


def write_hf_folder(folder: Path, architecture: str, seed: int = 0, *, num_shards: int = 1) -> Path:
    """Write config.json and safetensors of a tiny model in float32; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(architecture), indent=2))
    tensors = {tensor.hf_name: tensor.values for tensor in tiny_tensors(architecture, seed)}
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::num_shards])
        save_file(part, folder / name)
        weight_map.update(dict.fromkeys(part, name))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_gguf(
    path: Path,
    architecture: str,
    seed: int = 0,
    *,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra_metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a tiny model as GGUF, its matrices in `matrix_type` (32 numbers a block at most).

    `extra_metadata` takes strings, integers, floats, booleans and lists, e.g. a tokenizer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, architecture)
    _add_metadata(writer, architecture)
    for key, value in (extra_metadata or {}).items():
        _add_value(writer, key, value)
    tensors = tiny_tensors(architecture, seed)
    named = {tensor.gguf_name: gguf_values(architecture, tensor) for tensor in tensors}
    if architecture == LATENT:
        named = latent_gguf(named, NUM_HEADS)
    for name, values in named.items():
        is_packed = values.ndim > 1 and "ffn_gate_inp" not in name
        kind = matrix_type if is_packed else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    if architecture == GEMMA4:
        writer.add_tensor("rope_freqs.weight", rope_divisors())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_tensors(architecture: str, seed: int = 0) -> list[TinyTensor]:
    """Make the weights of a tiny model, scaled so that logits differ clearly."""
    places = (*ARCHITECTURES, HYBRID, GEMMA4, MIXTURE, LATENT)
    rng = np.random.default_rng([seed, places.index(architecture)])

    def normal(*shape: int, scale: float) -> FloatArray:
        return rng.normal(0, scale, shape).astype(np.float32)

    def norm(size: int, name: str = "") -> FloatArray:
        # Gemma and Qwen3.5 store norms as distance from 1, but for one.
        is_distance = architecture in ("gemma3", HYBRID) and "linear_attn" not in name
        centre = 0 if is_distance else 1
        return np.asarray(centre + normal(size, scale=0.2), dtype=np.float32)

    embedding = normal(VOCAB_SIZE, HIDDEN_SIZE, scale=0.3)
    tensors = [TinyTensor("model.embed_tokens.weight", "token_embd.weight", embedding)]
    for layer in range(NUM_LAYERS[architecture]):
        for hf_name, gguf_name, shape in _layer_parts(architecture, layer):
            # A weight of n inputs gets 1/√n, so that its outputs are about as large as its inputs.
            is_norm = hf_name.endswith(("norm.weight", "layer_scalar"))
            is_rate = hf_name in ("linear_attn.A_log", "linear_attn.dt_bias")
            scale = 1.0 if is_rate else 1.5 * shape[-1] ** -0.5
            values = norm(shape[0], hf_name) if is_norm else normal(*shape, scale=scale)
            tensors.append(
                TinyTensor(f"model.layers.{layer}.{hf_name}", f"blk.{layer}.{gguf_name}", values)
            )
    if architecture == GEMMA4:
        for hf_name, gguf_name, shape in gemma4_frame(hf_config(architecture)):
            values = norm(*shape) if len(shape) == 1 else normal(*shape, scale=0.2)
            tensors.append(TinyTensor(f"model.{hf_name}", gguf_name, values))
    tensors.append(TinyTensor("model.norm.weight", "output_norm.weight", norm(HIDDEN_SIZE)))
    if architecture not in TIED:
        lm_head = normal(VOCAB_SIZE, HIDDEN_SIZE, scale=0.3)
        tensors.append(TinyTensor("lm_head.weight", "output.weight", lm_head))
    return tensors


def gguf_values(architecture: str, tensor: TinyTensor) -> FloatArray:
    """Lay a weight out as llama.cpp's converter does."""
    values = tensor.values
    if architecture == "gemma3" and tensor.gguf_name.endswith("norm.weight"):
        return np.asarray(values + 1, dtype=np.float32)
    if architecture == "llama" and ".attn_q." in tensor.gguf_name:
        return _interleave(values, NUM_HEADS)
    if architecture == "llama" and ".attn_k." in tensor.gguf_name:
        return _interleave(values, NUM_KV_HEADS)
    return values


def hf_config(architecture: str) -> dict[str, Any]:
    """Return the config.json of a tiny model."""
    model_type, model_class = _HF_CLASSES[architecture]
    config = {
        "architectures": [model_class],
        "model_type": model_type,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": NUM_LAYERS[architecture],
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6 if architecture == "gemma3" else 1e4,
        "tie_word_embeddings": architecture in TIED,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if architecture == "gemma3":
        config |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": HEAD_DIM,
            "sliding_window": SLIDING_WINDOW,
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 1e4,
        }
    if architecture == LATENT:
        config |= latent_config(NUM_HEADS)
    if architecture == MIXTURE:
        config |= mixture_config()
    if architecture == GEMMA4:
        del config["rope_theta"]
        config |= gemma4_config(NUM_LAYERS[architecture], SLIDING_WINDOW, VOCAB_SIZE)
    if architecture == HYBRID:
        config |= delta_net_config()
    return config


def _layer_parts(architecture: str, layer: int) -> list[tuple[str, str, tuple[int, ...]]]:
    """List a layer's weights: Hugging Face name, GGUF name, shape."""
    if architecture == GEMMA4:
        return gemma4_layer(hf_config(architecture), layer)
    if architecture == LATENT:
        return latent_layer(layer, HIDDEN_SIZE, NUM_HEADS, INTERMEDIATE_SIZE)
    hidden, inner = (HIDDEN_SIZE,), (INTERMEDIATE_SIZE, HIDDEN_SIZE)
    query, key = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    num_queries = 2 * query if architecture == HYBRID else query  # with a gate each
    parts: list[tuple[str, str, tuple[int, ...]]] = [
        ("input_layernorm.weight", "attn_norm.weight", hidden),
        ("self_attn.q_proj.weight", "attn_q.weight", (num_queries, HIDDEN_SIZE)),
        ("self_attn.k_proj.weight", "attn_k.weight", (key, HIDDEN_SIZE)),
        ("self_attn.v_proj.weight", "attn_v.weight", (key, HIDDEN_SIZE)),
        ("self_attn.o_proj.weight", "attn_output.weight", (HIDDEN_SIZE, query)),
        ("mlp.gate_proj.weight", "ffn_gate.weight", inner),
        ("mlp.up_proj.weight", "ffn_up.weight", inner),
        ("mlp.down_proj.weight", "ffn_down.weight", inner[::-1]),
    ]
    if architecture == "qwen2":
        parts += [
            ("self_attn.q_proj.bias", "attn_q.bias", (query,)),
            ("self_attn.k_proj.bias", "attn_k.bias", (key,)),
            ("self_attn.v_proj.bias", "attn_v.bias", (key,)),
        ]
    if architecture in ("qwen3", "gemma3", HYBRID):
        parts += [
            ("self_attn.q_norm.weight", "attn_q_norm.weight", (HEAD_DIM,)),
            ("self_attn.k_norm.weight", "attn_k_norm.weight", (HEAD_DIM,)),
        ]
    if architecture == MIXTURE:
        if layer > 0:
            parts = [part for part in parts if not part[0].startswith("mlp.")] + expert_parts(
                HIDDEN_SIZE
            )
        return [*parts, ("post_attention_layernorm.weight", "post_attention_norm.weight", hidden)]
    if architecture == HYBRID:
        if (layer + 1) % ATTENTION_EVERY:
            attending = [part for part in parts if "self_attn" not in part[0]]
            parts = [*attending, *delta_net_parts(HIDDEN_SIZE)]
        return [*parts, ("post_attention_layernorm.weight", "post_attention_norm.weight", hidden)]
    if architecture != "gemma3":
        return [*parts, ("post_attention_layernorm.weight", "ffn_norm.weight", hidden)]
    return [
        *parts,
        ("post_attention_layernorm.weight", "post_attention_norm.weight", hidden),
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight", hidden),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", hidden),
    ]


def _interleave(values: FloatArray, num_heads: int) -> FloatArray:
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _add_metadata(writer: GGUFWriter, architecture: str) -> None:
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(HIDDEN_SIZE)
    writer.add_block_count(NUM_LAYERS[architecture])
    writer.add_head_count(NUM_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6 if architecture in ("gemma3", GEMMA4) else 1e4)
    writer.add_vocab_size(VOCAB_SIZE)
    if architecture == GEMMA4:
        return add_gemma4_metadata(writer, hf_config(architecture))
    writer.add_feed_forward_length(INTERMEDIATE_SIZE)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM // 2 if architecture == MIXTURE else HEAD_DIM)
    if architecture == "gemma3":
        writer.add_sliding_window(SLIDING_WINDOW)
    if architecture == LATENT:
        add_latent_metadata(writer)
    if architecture == MIXTURE:
        add_mixture_metadata(writer)


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
