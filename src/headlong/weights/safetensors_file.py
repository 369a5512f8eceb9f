"""Safetensors files: the header validated, the tensors memory-mapped.

In:  the path of a safetensors file, of a backbone or of a head.
Out: its tensors under their own names, mapped from the file.
Types are carried as GGUF spells them; BOOL, which GGUF has not, is carried as I8 with 0 and 1, and
the packed words of MLX's matrices, U32, as I32.
Knows nothing of shards, of config.json or of what a name means.
"""

import math
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from headlong.arrays import ByteArray
from headlong.errors import CheckpointError, TensorError
from headlong.weights.mapped_file import DOWNLOAD_AGAIN, map_file, parse_json_object, shown
from headlong.weights.tensors import FloatType, StoredTensor, StoredType, block_sizes

MAX_HEADER_BYTES = 2**21
"""Thousands of tensors take a few hundred kilobytes."""
MAX_TENSORS = 2**16
MAX_DIMENSIONS = 8

_TYPES: dict[str, StoredType] = {
    name: GGMLQuantizationType[name]
    for name in ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8")
}
_TYPES["BOOL"] = GGMLQuantizationType.I8
_TYPES["U32"] = GGMLQuantizationType.I32
_TYPES["F8_E4M3"] = FloatType.F8_E4M3


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Read a safetensors file's header and map its tensors."""
    data = map_file(path)
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    if data.nbytes < 8 or header_bytes > data.nbytes - 8:
        problem = f"{path} is not a whole safetensors file: its header should be {header_bytes}"
        raise CheckpointError(f"{problem} bytes long, the file is {data.nbytes}.", DOWNLOAD_AGAIN)
    if header_bytes > MAX_HEADER_BYTES:
        problem = f"{path} has a header of {header_bytes} bytes; {MAX_HEADER_BYTES} is the limit."
        raise CheckpointError(problem, "Save the model again, in shards.")
    fields = parse_json_object(data[8 : 8 + header_bytes].tobytes(), path, "the header")
    fields.pop("__metadata__", None)
    if len(fields) > MAX_TENSORS:
        problem = f"{path} holds {len(fields)} tensors; {MAX_TENSORS} is the limit for one file."
        raise CheckpointError(problem, "Save the model again, in shards.")
    body = data[8 + header_bytes :]
    tensors = [_read_tensor(path, name, entry, body) for name, entry in fields.items()]
    _check_places(path, fields, body.nbytes)
    return {tensor.name: tensor for tensor in tensors}


def _read_tensor(path: Path, name: str, entry: Any, body: ByteArray) -> StoredTensor:
    keys = ("dtype", "shape", "data_offsets")
    if not isinstance(entry, dict) or not all(key in entry for key in keys):
        raise _refusal(path, name, f"is described by {shown(entry)}")
    dtype, shape, offsets = (entry[key] for key in keys)
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise TensorError(
            f"{path}: tensor {shown(name)} is stored as {shown(dtype)}, which is not read here.",
            f"Use a version of the model in one of {', '.join(_TYPES)}, or a GGUF of it.",
        )
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS or 0 in shape:
        raise _refusal(path, name, f"has the shape {shown(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise _refusal(path, name, f"has the offsets {shown(offsets)}")
    begin, end = offsets
    if not begin <= end <= body.nbytes:
        raise _refusal(path, name, f"lies at {begin}…{end}, outside the {body.nbytes} data bytes")
    row_bytes = (shape[-1] if shape else 1) * block_sizes(_TYPES[dtype])[1]
    num_rows = math.prod(shape[:-1])
    if end - begin != num_rows * row_bytes:
        problem = f"takes {num_rows * row_bytes} bytes by its shape {shape} and type {dtype}"
        raise _refusal(path, name, f"{problem}, but {end - begin} in the file")
    rows = body[begin:end].reshape(num_rows, row_bytes)
    return StoredTensor(name, tuple(shape), _TYPES[dtype], rows)


def _are_sizes(value: Any) -> bool:
    # `type(...) is int` since JSON's true would pass as 1.
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_places(path: Path, fields: dict[str, Any], available: int) -> None:
    """Refuse overlaps, holes and left-over bytes: the tensors must tile the data."""
    end = 0
    for name, entry in sorted(fields.items(), key=lambda item: item[1]["data_offsets"]):
        begin = entry["data_offsets"][0]
        if begin != end:
            fault = "overlaps the tensor before it" if begin < end else "leaves a hole before it"
            raise _refusal(path, name, f"begins at {begin}, not at {end}: it {fault}")
        end = entry["data_offsets"][1]
    if end != available:
        problem = f"{path}: its tensors take {end} bytes, but {available} are there."
        raise CheckpointError(problem, DOWNLOAD_AGAIN)


def _refusal(path: Path, name: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: tensor {shown(name)} {problem}.", DOWNLOAD_AGAIN)
