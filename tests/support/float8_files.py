"""Tiny models in FP8 as published: bytes beside the scales of blocks, written without a library."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from headlong.arrays import ByteArray, FloatArray
from model_files import hf_config, tiny_tensors


def meaning(byte: int) -> float:
    """Return the number that a byte of E4M3 stands for."""
    sign = -1.0 if byte & 128 else 1.0
    exponent, fraction = byte >> 3 & 15, byte & 7
    if (exponent, fraction) == (15, 7):
        return math.nan
    if exponent == 0:
        return sign * 2.0**-6 * (fraction / 8)
    return sign * 2.0 ** (exponent - 7) * (1 + fraction / 8)


MEANINGS = np.array([meaning(byte) for byte in range(256)], dtype=np.float32)


def to_float8(values: FloatArray, block: tuple[int, int]) -> tuple[ByteArray, FloatArray]:
    """Round a matrix to bytes and scales of its blocks."""
    rows, columns = (np.arange(n) // step for n, step in zip(values.shape, block, strict=True))
    scales = np.zeros((rows[-1] + 1, columns[-1] + 1), dtype=np.float32)
    np.maximum.at(scales, (rows[:, None], columns[None]), np.abs(values))
    scales /= np.float32(448)
    order = np.argsort(MEANINGS[:254], kind="stable")  # without the two that are no numbers
    order = order[~np.isnan(MEANINGS[order])]
    known = MEANINGS[order]
    wanted = values / scales[rows][:, columns]
    places = np.searchsorted((known[1:] + known[:-1]) / 2, wanted)
    return order[places].astype(np.uint8), scales


def write_float8_folder(
    folder: Path, architecture: str, block: tuple[int, int]
) -> dict[str, FloatArray]:
    """Write a tiny model whose projections are FP8; return all weights as the file has them."""
    folder.mkdir(parents=True, exist_ok=True)
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)}
    config = hf_config(architecture) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    stored: dict[str, tuple[str, Any]] = {}
    meant: dict[str, FloatArray] = {}
    for tensor in tiny_tensors(architecture):
        name, values = tensor.hf_name, tensor.values
        if not name.endswith("_proj.weight") and "kv_a_proj" not in name:
            stored[name], meant[name] = ("F32", values), values
            continue
        data, scales = to_float8(values, block)
        stored[name], stored[f"{name}_scale_inv"] = ("F8_E4M3", data), ("F32", scales)
        rows, columns = (np.arange(n) // step for n, step in zip(data.shape, block, strict=True))
        meant[name] = MEANINGS[data] * scales[rows][:, columns]
    write_safetensors(folder / "model.safetensors", stored)
    return meant


def write_safetensors(path: Path, tensors: dict[str, tuple[str, Any]]) -> None:
    """Write arrays under their names, each as the type named."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, array) in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    data = b"".join(array.tobytes() for _, array in tensors.values())
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
