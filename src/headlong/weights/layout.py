"""Layout: convert the formats' different layouts of the same weights to one.

In:  tensors under canonical names, as their file has them.
Out: the same tensors as the packages above expect them: rotary rows as Hugging Face orders them
     (first half, second half of each head), and norm weights that multiply as they are.

    | format      | architecture | differs in                | made the same by              |
    |-------------|--------------|---------------------------|-------------------------------|
    | GGUF        | llama,eagle3 | q/k rows are interleaved  | putting the halves back       |
    | GGUF        | with experts | `ffn_gate_inp_shexp` (H,) | its shape (1, H)              |
    | GGUF        | deepseek2    | k_b, v_b (heads, …, …)    | (heads * …, …)                |
    | safetensors | gemma3       | norms hold w, mean 1 + w  | adding the 1 that GGUF stores |
    | safetensors | qwen3.5/next | same, but for `ssm_norm`; | same; −exp and the shape of   |
    |             |              | `A_log`; conv1d (C, 1, W) | GGUF: `ssm_a`, (C, W)         |
    | safetensors | nemotron_h   | `A_log`; conv1d (C, 1, W) | same                          |
    | MLX         | qwen3.5/next | norms hold 1 + w already; | leaving them;                 |
    |             |              | conv1d (C, W, 1)          | (C, W)                        |
    | MLX         | deepseek2    | k_b, v_b (heads, …, …)    | (heads * …, …)                |
    | GGUF        | nemotron_h…  | vectors as (heads, 1)     | making them vectors           |
    | GGUF        | mimo2        | `layer_output_norm`       | `nextn.shared_head_norm`      |
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from headlong.arrays import FloatArray
from headlong.errors import ArchitectureError, CheckpointError, TensorError
from headlong.weights.mapped_file import DOWNLOAD_AGAIN, shown
from headlong.weights.tensors import StoredTensor

_ROTARY = re.compile(r"blk\.\d+\.attn_([qk])\.(?:weight|bias)")
_NORM = re.compile(r"(?:blk\.\d+\.(?!ssm_)(?:\w+_norm|nextn\.\w*norm)|output_norm)\.weight")
_ROW = re.compile(r"blk\.\d+\.ffn_gate_inp_shexp\.weight")
_BY_HEAD = re.compile(r"blk\.\d+\.attn_[kv]_b\.weight")
_FLAT = re.compile(r"blk\.\d+\.(?:ssm_[ad]|ssm_norm\.weight)")
_LAYER_NORM = ".layer_output_norm."
_INTERLEAVED = ("llama", "eagle3")
_ONE_PLUS = ("gemma3", "qwen35", "qwen35moe", "qwen3next")
_LOG_DECAY = re.compile(r"blk\.\d+\.ssm_a")
_CONVOLUTION = re.compile(r"blk\.\d+\.ssm_conv1d\.weight")


def unify_gguf(
    architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return a GGUF file's tensors in the one layout."""
    if architecture.startswith("nemotron_h"):
        return {name: _flat(one) if _FLAT.fullmatch(name) else one for name, one in tensors.items()}
    if architecture == "mimo2":
        # llama.cpp's converter takes the final norm of an MTP module for one of the layer.
        names = {name: name.replace(_LAYER_NORM, ".nextn.shared_head_norm.") for name in tensors}
        return {names[name]: replace(one, name=names[name]) for name, one in tensors.items()}
    if architecture not in _INTERLEAVED:
        return {name: _as_matrix(name, one) for name, one in tensors.items()}
    num_heads = _head_count(metadata, f"{architecture}.attention.head_count", None)
    num_kv_heads = _head_count(metadata, f"{architecture}.attention.head_count_kv", num_heads)
    heads = {"q": num_heads, "k": num_kv_heads}
    unified = {}
    for name, tensor in tensors.items():
        match = _ROTARY.fullmatch(name)
        unified[name] = _deinterleaved(tensor, heads[match[1]]) if match else tensor
    return unified


def unify_safetensors(
    architecture: str, tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the tensors of a folder of Hugging Face's or MLX's in the one layout."""
    if architecture not in _ONE_PLUS and not architecture.startswith("nemotron_h"):
        return {name: _as_matrix(name, one) for name, one in tensors.items()}
    # mlx-lm adds the 1 where it moves the axes of convolutions.
    is_moved = any(
        _CONVOLUTION.fullmatch(name) and one.shape[-1] == 1 for name, one in tensors.items()
    )
    adds_one = architecture in _ONE_PLUS and not is_moved
    unified = {}
    for name, tensor in tensors.items():
        if adds_one and _NORM.fullmatch(name):
            tensor = _with_values(tensor, tensor.to_float32() + np.float32(1))
        elif _LOG_DECAY.fullmatch(name):
            tensor = _with_values(tensor, -np.exp(tensor.to_float32()))
        elif _CONVOLUTION.fullmatch(name) and len(tensor.shape) == 3:
            values = tensor.to_float32()
            tensor = _with_values(tensor, values.reshape(len(values), -1))
        unified[name] = tensor
    return unified


def published(architecture: str, tensor: StoredTensor) -> StoredTensor:
    """Return a tensor of an attending layer as Hugging Face folders have it."""
    if architecture in _ONE_PLUS and _NORM.fullmatch(tensor.name):
        return _with_values(tensor, tensor.to_float32() - np.float32(1))
    return tensor


def name_in_gguf(architecture: str, name: str) -> str:
    """Return what llama.cpp's converter calls a tensor of an attending layer."""
    is_mimo = architecture == "mimo2"
    return name.replace(".nextn.shared_head_norm.", _LAYER_NORM) if is_mimo else name


def _as_matrix(name: str, tensor: StoredTensor) -> StoredTensor:
    if _ROW.fullmatch(name) and len(tensor.shape) == 1:
        return replace(tensor, shape=(1, *tensor.shape))
    if _BY_HEAD.fullmatch(name) and len(tensor.shape) == 3:
        return replace(tensor, shape=(len(tensor.data), tensor.shape[-1]))
    return tensor


def _flat(tensor: StoredTensor) -> StoredTensor:
    return _with_values(tensor, tensor.to_float32().reshape(-1))


def _deinterleaved(tensor: StoredTensor, num_heads: int) -> StoredTensor:
    """Undo llama.cpp's interleaving: rows (head, i, half) → (head, half, i)."""
    num_rows = tensor.shape[0] if len(tensor.shape) in (1, 2) else 1
    if num_rows % (2 * num_heads):
        raise TensorError(
            f"Tensor {tensor.name} has the shape {tensor.shape}, which {num_heads} heads with two"
            " halves each cannot share.",
            DOWNLOAD_AGAIN,
        )
    order = np.arange(num_rows, dtype=np.int64).reshape(num_heads, -1, 2).swapaxes(1, 2)
    return tensor.with_rows(order.reshape(-1))


def interleaved(tensor: StoredTensor, num_heads: int) -> StoredTensor:
    """Return query or key rows as llama.cpp has them: (head, half, i) → (head, i, half)."""
    order = np.arange(tensor.shape[0], dtype=np.int64).reshape(num_heads, 2, -1).swapaxes(1, 2)
    return tensor.with_rows(order.reshape(-1))


def _with_values(tensor: StoredTensor, values: FloatArray) -> StoredTensor:
    num_rows = 1 if values.ndim < 2 else len(values)
    data = np.ascontiguousarray(values).reshape(num_rows, -1).view(np.uint8)
    return replace(tensor, shape=values.shape, type=GGMLQuantizationType.F32, data=data)


def _head_count(metadata: Mapping[str, Any], key: str, default: int | None) -> int:
    value = metadata.get(key, default)
    if isinstance(value, (list, tuple)):
        raise ArchitectureError(
            f"{key} differs by layer, which is not read here: {shown(value)}.",
            "Choose a model whose layers all have the same number of heads.",
        )
    if type(value) is not int or not 0 < value < 2**16:
        raise CheckpointError(f"{key} is {shown(value)}, not a number of heads.", DOWNLOAD_AGAIN)
    return value
