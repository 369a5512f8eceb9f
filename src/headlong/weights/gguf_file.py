"""GGUF files: the header validated completely, the tensors memory-mapped.

In:  the path of a GGUF file, versions 2 and 3, little-endian.
Out: `GgufFile`: key/values as plain Python values, and tensors mapped from the file.
Every count, length and offset is checked against the size of the file before it is used, so a
damaged or hostile file is refused at once. Knows nothing of architectures or tensor names.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType

from headlong.arrays import ByteArray
from headlong.errors import CheckpointError, TensorError
from headlong.weights.mapped_file import DOWNLOAD_AGAIN, map_file, shown
from headlong.weights.tensors import StoredTensor

# Bounds on what we are willing to read, each several times what the largest known model needs.
MAX_HEADER_BYTES = 2**28
MAX_METADATA_VALUES = 2**21
MAX_KEY_VALUES = 2**16
MAX_ARRAY_DEPTH = 4
MAX_NAME_LENGTH = 2**16
MAX_TENSORS = 2**16
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 2**20

_DEFAULT_ALIGNMENT = 32
_SMALLEST_KEY_VALUE = 8 + 4 + 1  # key length, value type, one byte of value
_SMALLEST_TENSOR_INFO = 8 + 4 + 4 + 8  # name length, dimensions, type, offset

_UINT64 = struct.Struct("<Q")
_SCALAR_DTYPES = {
    kind: np.dtype(numbers).newbyteorder("<")
    for kind, numbers in GGUFReader.gguf_scalar_to_np.items()
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What one GGUF file holds."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]  # rows first
    type: GGMLQuantizationType
    row_bytes: int
    num_bytes: int
    offset: int  # from the start of the data section


def read_gguf(path: Path) -> GgufFile:
    """Read a GGUF file's header and map its tensors."""
    data = map_file(path)
    _check_magic(path, data[:8].tobytes())
    header = _Header(path, data)
    num_tensors = header.integer(8)
    num_key_values = header.integer(8)
    header.expect(num_key_values, _SMALLEST_KEY_VALUE, "key/values", MAX_KEY_VALUES)
    metadata = _read_metadata(header, num_key_values)
    header.expect(num_tensors, _SMALLEST_TENSOR_INFO, "tensors", MAX_TENSORS)
    infos = _read_tensor_infos(header, num_tensors)
    alignment = _alignment(header, metadata)
    _refuse_split(path, metadata)
    start = math.ceil(header.offset / alignment) * alignment
    _check_places(path, infos, alignment, data.nbytes - start)
    tensors = {}
    for info in infos:
        stored = data[start + info.offset :][: info.num_bytes].reshape(-1, info.row_bytes)
        tensors[info.name] = StoredTensor(info.name, info.shape, info.type, stored)
    return GgufFile(metadata, tensors)


class _Header:
    """Reads the header front to back and refuses to step past its end."""

    def __init__(self, path: Path, data: ByteArray) -> None:
        self.path = path
        self.offset = 8  # magic and version are checked already
        self._bytes = data[:MAX_HEADER_BYTES].data
        self._values_left = MAX_METADATA_VALUES

    def refusal(self, problem: str) -> CheckpointError:
        """Return the error for a header that cannot be right."""
        return CheckpointError(f"{self.path}: {problem}.", DOWNLOAD_AGAIN)

    def expect(self, count: int, smallest: int, what: str, limit: int = 2**64) -> None:
        """Refuse a count of things that is absurd or cannot fit into the bytes left."""
        left = len(self._bytes) - self.offset
        problem = f"it announces {count} {what} at byte {self.offset}"
        if count * smallest > left:
            raise self.refusal(f"{problem}, but {left} bytes are left")
        if count > limit:
            raise self.refusal(f"{problem}; {limit} is the limit")

    def take(self, num_bytes: int) -> memoryview:
        """Return the next bytes and step over them."""
        self.expect(num_bytes, 1, "bytes")
        self.offset += num_bytes
        return self._bytes[self.offset - num_bytes : self.offset]

    def integer(self, num_bytes: int) -> int:
        """Read an unsigned integer."""
        return int.from_bytes(self.take(num_bytes), "little")

    def name(self) -> str:
        """Read the name of a key or a tensor."""
        [name] = self._strings(1)
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise self.refusal(f"a name of {len(name)} characters stands before byte {self.offset}")
        return name

    def value(self, raw_type: int, depth: int = 0) -> Any:
        """Read one metadata value as a plain Python value."""
        try:
            value_type = GGUFValueType(raw_type)
        except ValueError as error:
            problem = f"a value of unknown type {raw_type} stands at byte {self.offset}"
            raise self.refusal(problem) from error
        if value_type == GGUFValueType.ARRAY:
            return self._array(depth + 1)
        if value_type == GGUFValueType.STRING:
            return self._strings(1)[0]
        return self._scalars(value_type, 1)[0]

    def _array(self, depth: int) -> list[Any]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.refusal(f"arrays are nested more than {MAX_ARRAY_DEPTH} deep")
        raw_type = self.integer(4)
        count = self.integer(8)
        # Inner arrays are counted many times over, for the time they take; no known file has any.
        self._values_left -= count * (64 if raw_type == GGUFValueType.ARRAY else 1)
        if self._values_left < 0:
            raise self.refusal(f"its arrays hold more than {MAX_METADATA_VALUES} values")
        if raw_type == GGUFValueType.STRING:
            return self._strings(count)
        if raw_type in _SCALAR_DTYPES:
            return self._scalars(GGUFValueType(raw_type), count)
        self.expect(count, 12, "inner arrays")  # each has at least a type and a count
        return [self.value(raw_type, depth) for _ in range(count)]

    def _scalars(self, value_type: GGUFValueType, count: int) -> list[Any]:
        dtype = _SCALAR_DTYPES[value_type]
        self.expect(count, dtype.itemsize, "values")
        values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values

    def _strings(self, count: int) -> list[str]:
        # A vocabulary has hundreds of thousands of these, and they are most of the opening time:
        # so this loop keeps its own place and does not go through `take`.
        self.expect(count, 8, "strings")
        raw, end, texts = self._bytes, self.offset, []
        try:
            for _ in range(count):
                begin = end + 8
                end = begin + _UINT64.unpack_from(raw, end)[0]
                if end > len(raw):
                    raise self.refusal(f"the string at byte {begin} should end at byte {end}")
                texts.append(str(raw[begin:end], "utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            raise self.refusal(f"the string at byte {begin} is cut off or not UTF-8") from error
        self.offset = end
        return texts


def _check_magic(path: Path, first: bytes) -> None:
    if first[:4] != b"GGUF":
        problem = f"{path} is not a GGUF file: it begins with {first!r} instead of b'GGUF'."
        raise CheckpointError(
            problem, "Give a GGUF file, or download it again if it should be one."
        )
    if len(first) < 8:
        raise CheckpointError(f"{path} ends after {len(first)} bytes.", DOWNLOAD_AGAIN)
    version = int.from_bytes(first[4:], "little")
    if version & 0xFFFF == 0:
        problem = f"{path} is a big-endian GGUF file; only little-endian ones are read."
        raise CheckpointError(problem, "Download the little-endian version of the model.")
    if version not in (2, 3):
        problem = f"{path} is a GGUF file of version {version}; versions 2 and 3 are read."
        raise CheckpointError(problem, "Convert the model again with a current llama.cpp.")


def _read_metadata(header: _Header, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = header.name()
        if key in metadata:
            raise header.refusal(f"the key {shown(key)} occurs twice")
        metadata[key] = header.value(header.integer(4))
    return metadata


def _read_tensor_infos(header: _Header, count: int) -> list[_TensorInfo]:
    infos: dict[str, _TensorInfo] = {}
    for _ in range(count):
        info = _read_tensor_info(header)
        if info.name in infos:
            raise header.refusal(f"the tensor {shown(info.name)} occurs twice")
        infos[info.name] = info
    return list(infos.values())


def _read_tensor_info(header: _Header) -> _TensorInfo:
    name = header.name()
    num_dimensions = header.integer(4)
    if num_dimensions > MAX_DIMENSIONS:
        raise header.refusal(f"tensor {shown(name)} has {num_dimensions} dimensions")
    # GGUF writes the fastest-moving dimension first; we write rows first.
    shape = tuple(header.integer(8) for _ in range(num_dimensions))[::-1]
    if not all(0 < size < 2**63 for size in shape):
        raise header.refusal(f"tensor {shown(name)} has the shape {shape}")
    raw_type = header.integer(4)
    try:
        tensor_type = GGMLQuantizationType(raw_type)
        block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
    except (ValueError, KeyError) as error:
        raise TensorError(
            f"{header.path}: tensor {shown(name)} is stored as type {raw_type}, which is unknown.",
            "Use a version of the model in a common type such as Q4_K_M, Q8_0 or F16.",
        ) from error
    row_size = shape[-1] if shape else 1
    if row_size % block_size:
        problem = f"tensor {shown(name)} has rows of {row_size}, but {tensor_type.name} packs"
        raise header.refusal(f"{problem} {block_size} at a time")
    row_bytes = row_size // block_size * block_bytes
    num_bytes = math.prod(shape[:-1]) * row_bytes
    return _TensorInfo(name, shape, tensor_type, row_bytes, num_bytes, header.integer(8))


def _alignment(header: _Header, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    # Anything but a small power of two would let offsets mean nothing.
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT:
        raise header.refusal(f"general.alignment is {shown(alignment)}")
    if alignment & (alignment - 1):
        raise header.refusal(f"general.alignment is {alignment}, which is not a power of two")
    return alignment


def _refuse_split(path: Path, metadata: dict[str, Any]) -> None:
    num_parts = metadata.get("split.count", 1)
    if isinstance(num_parts, int) and num_parts > 1:
        raise CheckpointError(
            f"{path} is one of {num_parts} parts of a split GGUF model.",
            "Join them with `llama-gguf-split --merge FIRST-PART JOINED.gguf` and give that file.",
        )


def _check_places(path: Path, infos: list[_TensorInfo], alignment: int, available: int) -> None:
    """Refuse tensors outside the file, off their alignment or on top of each other."""
    end, before = 0, "the header"
    for info in sorted(infos, key=lambda info: info.offset):
        name = shown(info.name)
        if info.offset % alignment:
            problem = f"tensor {name} begins at {info.offset}, not at a multiple of {alignment}"
            raise CheckpointError(f"{path}: {problem}.", DOWNLOAD_AGAIN)
        if info.offset + info.num_bytes > available:
            problem = f"tensor {name} ends at byte {info.offset + info.num_bytes} of the data"
            raise CheckpointError(
                f"{path}: {problem}, but only {max(available, 0)} bytes are there.", DOWNLOAD_AGAIN
            )
        if info.offset < end:
            raise CheckpointError(f"{path}: tensors {before} and {name} overlap.", DOWNLOAD_AGAIN)
        end, before = info.offset + info.num_bytes, name
