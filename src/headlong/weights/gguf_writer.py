"""GGUF files written, tensor by tensor.

In:  an architecture's name, metadata as plain Python values, tensors in the layout of such files.
Out: a file that `gguf_file` reads. Knows nothing of keys' or names' meaning.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from headlong.weights.tensors import StoredTensor, block_sizes

FILE_TYPES = {
    GGMLQuantizationType.F32: 0,
    GGMLQuantizationType.F16: 1,
    GGMLQuantizationType.BF16: 32,
}
"""What `general.file_type` says of a file whose matrices are of one type."""


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """One tensor of a file to be written."""

    name: str
    shape: tuple[int, ...]
    """Rows first."""
    type: GGMLQuantizationType
    make: Callable[[], StoredTensor]
    """Called when it is the tensor's turn."""

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in the file."""
        together, num_bytes = block_sizes(self.type)
        return prod(self.shape) // together * num_bytes


def write_gguf(
    path: Path, architecture: str, metadata: Mapping[str, Any], entries: Iterable[GgufEntry]
) -> None:
    """Write a file; numbers have 32 bits where they fit, as readers of these files expect."""
    writer = GGUFWriter(path, architecture)
    entries = list(entries)
    try:
        for key, value in metadata.items():
            _add(writer, key, value)
        for entry in entries:
            # The type of the array is not looked at where the stored one is given.
            dtype = np.dtype(np.float32)
            writer.add_tensor_info(entry.name, entry.shape, dtype, entry.num_bytes, entry.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(np.ascontiguousarray(entry.make().data))
    finally:
        writer.close()


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        add = writer.add_uint64 if value >= 2**32 else writer.add_uint32
        (writer.add_int32 if value < 0 else add)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)
