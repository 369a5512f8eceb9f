"""Tiny models as mlx-lm converts them: names and layouts changed, matrices in affine groups.

Written by hand after what mlx-lm's `sanitize` and MLX's `quantize` do, without either.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from float8_files import write_safetensors
from headlong.arrays import ByteArray, FloatArray
from headlong.weights.tensors import AffineType, GroupScales, StoredTensor
from latent_files import PLAIN_DIM
from model_files import HYBRID, LATENT, MIXTURE, NUM_HEADS, hf_config, tiny_tensors

_EPS = np.float32(1e-7)
_NEVER_QUANTISED = re.compile(r"norm\.weight|conv1d|mlp\.gate\.weight|bias$|A_log$")
_SHIFTED = re.compile(r"(?:layernorm|model\.norm|q_norm|k_norm)\.weight")


def to_type(values: FloatArray, dtype: str) -> Any:
    """Return numbers as a file holds them; bfloat16 as 16-bit integers, to nearest."""
    if dtype != "BF16":
        return values.astype({"F16": "<f2", "F32": "<f4"}[dtype])
    words = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype("<u2")


def from_type(stored: Any, dtype: str) -> FloatArray:
    """Return what numbers of a file mean."""
    if dtype == "BF16":
        stored = (stored.astype("<u4") << 16).view("<f4")
    return np.asarray(stored, dtype=np.float32)


def quantise(
    values: FloatArray, bits: int, group_size: int, dtype: str
) -> tuple[ByteArray, Any, Any]:
    """Round as `mx.quantize`: packed words, scales and biases, all as a file holds them."""
    rounded = from_type(to_type(values, dtype), dtype)
    groups = rounded.reshape(*values.shape[:-1], -1, group_size)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    is_low = np.abs(low) > np.abs(high)
    scales = np.maximum((high - low) / np.float32(2**bits - 1), _EPS)
    scales = np.where(is_low, scales, -scales)
    edges = np.where(is_low, low, high)
    steps = np.rint(edges / scales)
    scales = np.where(steps != 0, edges / np.where(steps == 0, 1, steps), scales)
    biases = np.where(steps == 0, np.float32(0), edges)
    levels = np.rint((groups - biases) / scales).clip(0, 2**bits - 1).astype(np.uint8)
    ones = (levels[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    stream = ones.reshape(*values.shape[:-1], -1)
    words = np.packbits(stream, axis=-1, bitorder="little").view("<u4")
    return words, to_type(scales[..., 0], dtype), to_type(biases[..., 0], dtype)


def meaning(words: ByteArray, scales: Any, biases: Any, bits: int, dtype: str) -> FloatArray:
    """Return scale * level + bias in float32, bit by bit."""
    ones = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    levels = (ones.reshape(*words.shape[:-1], -1, bits) << np.arange(bits)).sum(axis=-1)
    groups = levels.reshape(*scales.shape, -1).astype(np.float32)
    by_group = [from_type(part, dtype)[..., None] for part in (scales, biases)]
    values: FloatArray = groups * by_group[0] + by_group[1]
    return values.reshape(levels.shape)


def affine(
    bits: int, group_size: int, dtype: str, outputs: int = 37, inputs: int = 384
) -> StoredTensor:
    """Return a random matrix as an MLX file holds it."""
    values = np.random.default_rng(7).standard_normal((outputs, inputs)).astype(np.float32)
    words, *parts = quantise(values, bits, group_size, dtype)
    kind = GGMLQuantizationType[dtype]
    scales = [
        StoredTensor("s", part.shape, kind, np.ascontiguousarray(part).view(np.uint8))
        for part in parts
    ]
    data = np.ascontiguousarray(words).view(np.uint8)
    shape = (outputs, inputs)
    return StoredTensor("w", shape, AffineType(bits, group_size), data, GroupScales(*scales))


def sanitised(architecture: str) -> dict[str, FloatArray]:
    """Return a tiny model's weights under the names and in the layout mlx-lm gives them."""
    weights = {tensor.hf_name: tensor.values for tensor in tiny_tensors(architecture)}
    change: dict[str, Callable[[dict[str, FloatArray]], dict[str, FloatArray]]] = {
        HYBRID: _moved_hybrid,
        MIXTURE: _split_stacks,
        LATENT: _stacked_latent,
    }
    return change.get(architecture, dict)(weights)


def write_mlx_folder(
    folder: Path,
    architecture: str,
    bits: int = 4,
    group_size: int = 32,
    dtype: str = "F32",
    *,
    own: dict[str, int] | None = None,
) -> dict[str, FloatArray]:
    """Write a tiny model as mlx-lm does; return its weights, unpacked, under their names.

    `own` says which modules have other bits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    quantization: dict[str, Any] = {"group_size": group_size, "bits": bits, "mode": "affine"}
    stored: dict[str, tuple[str, Any]] = {}
    meant: dict[str, FloatArray] = {}
    for name, values in sanitised(architecture).items():
        stem = name.removesuffix(".weight")
        is_whole = values.ndim > 1 and values.shape[-1] % group_size == 0
        if not is_whole or _NEVER_QUANTISED.search(name):
            stored[name] = (dtype, to_type(values, dtype))
            meant[name] = from_type(stored[name][1], dtype)
            continue
        width = (own or {}).get(stem, bits)
        if width != bits:
            quantization[stem] = {"group_size": group_size, "bits": width}
        words, scales, biases = quantise(values, width, group_size, dtype)
        stored |= {
            name: ("U32", words),
            f"{stem}.scales": (dtype, scales),
            f"{stem}.biases": (dtype, biases),
        }
        meant[name] = meaning(words, scales, biases, width, dtype)
    config = hf_config(architecture) | {
        "quantization": quantization,
        "quantization_config": quantization,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", stored)
    return meant


def write_float_folder(folder: Path, architecture: str, weights: dict[str, FloatArray]) -> Path:
    """Write weights in float32 under the names they have."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(architecture)))
    stored = {name: ("F32", np.ascontiguousarray(values)) for name, values in weights.items()}
    write_safetensors(folder / "model.safetensors", stored)
    return folder


def _moved_hybrid(weights: dict[str, FloatArray]) -> dict[str, FloatArray]:
    moved = {}
    for name, values in weights.items():
        if "conv1d" in name:
            values = np.moveaxis(values, 2, 1)
        elif _SHIFTED.search(name):
            values = values + np.float32(1)
        moved[f"language_model.{name}"] = values
    return moved


def _split_stacks(weights: dict[str, FloatArray]) -> dict[str, FloatArray]:
    split: dict[str, FloatArray] = {}
    for name, values in weights.items():
        stem = name.rpartition(".experts.")[0] + ".switch_mlp."
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(values, 2, axis=1)
            split |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            split[f"{stem}down_proj.weight"] = values
        else:
            split[name] = values
    return split


def _stacked_latent(weights: dict[str, FloatArray]) -> dict[str, FloatArray]:
    stacks: dict[str, list[FloatArray]] = {}
    others = {}
    for name, values in weights.items():
        stem, is_expert, rest = name.partition(".experts.")
        if is_expert:
            stacks.setdefault(f"{stem}.switch_mlp.{rest.partition('.')[2]}", []).append(values)
        elif ".kv_b_proj." in name:
            heads = values.reshape(NUM_HEADS, -1, values.shape[-1])
            keys, made = heads[:, :PLAIN_DIM].swapaxes(1, 2), heads[:, PLAIN_DIM:]
            others[name.replace("kv_b_proj", "embed_q")] = np.ascontiguousarray(keys)
            others[name.replace("kv_b_proj", "unembed_out")] = made
        else:
            others[name] = values
    return others | {name: np.stack(experts) for name, experts in stacks.items()}
