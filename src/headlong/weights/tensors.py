"""Tensors as they lie in a file: named, shaped, typed, not yet unpacked.

In:  bytes of a memory-mapped model file.
Out: `StoredTensor`, which a backend packs as it likes or unpacks to float32 (or integers).
Knows nothing of file layouts; `gguf_file` and `safetensors_file` make these.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from headlong.arrays import ByteArray, FloatArray, IntArray
from headlong.errors import TensorError
from headlong.weights.mapped_file import let_go

_VALUES_AT_ONCE = 2**20
"""Of a block: 4 MB once unpacked."""

_INTEGER_DTYPES = {
    GGMLQuantizationType.I8: "<i1",
    GGMLQuantizationType.I16: "<i2",
    GGMLQuantizationType.I32: "<i4",
    GGMLQuantizationType.I64: "<i8",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, as stored."""

    name: str
    """Our canonical name, spelled as in GGUF files (`blk.0.attn_q.weight`)."""
    shape: tuple[int, ...]
    """Rows first: (outputs, inputs) for a matrix."""
    type: GGMLQuantizationType
    """How the bytes encode numbers."""
    data: ByteArray
    """(rows, bytes per row); a one-dimensional tensor is one row. Usually memory-mapped."""

    @property
    def num_bytes(self) -> int:
        """Bytes the tensor takes as stored."""
        return int(self.data.nbytes)

    def to_float32(self) -> FloatArray:
        """Unpack to float32 in the logical shape."""
        if self.type == GGMLQuantizationType.F64:
            return self.data.view("<f8").reshape(self.shape).astype(np.float32)
        try:
            with np.errstate(all="ignore"):  # odd scales of a damaged block are not our warning
                values = dequantize(self.data, self.type).reshape(self.shape)
        except NotImplementedError as error:
            raise TensorError(
                f"Tensor {self.name} is stored as {self.type.name}, which cannot be unpacked.",
                "Use the model in F32, F16, BF16, Q8_0, Q4_0…Q5_1 or Q2_K…Q6_K.",
            ) from error
        # Safetensors files may put a float32 at an odd address; numpy copies only in that case.
        return np.require(values, dtype=np.float32, requirements=["C", "ALIGNED"])

    def row_blocks(self) -> "Iterator[StoredTensor]":
        """Cut into blocks of rows, so that reading a tensor never holds it twice."""
        # A block is there until the next one is asked for: mapped pages are let go behind it.
        step = max(1, _VALUES_AT_ONCE // max(1, self._num_columns))
        for first in range(0, len(self.data), step):
            block = self.cut(first, first + step)
            yield block
            let_go(block.data)

    def cut(self, first: int, stop: int) -> "StoredTensor":
        """Return some consecutive rows; those of a stack of matrices are counted throughout."""
        data = self.data[first:stop]
        return replace(self, shape=(len(data), self._num_columns), data=data)

    @property
    def _num_columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    def to_int64(self) -> IntArray:
        """Unpack integers (token maps and masks of heads) in the logical shape."""
        dtype = _INTEGER_DTYPES.get(self.type)
        if dtype is None:
            raise TensorError(
                f"Tensor {self.name} is stored as {self.type.name}, but integers are needed there.",
                "The file was written with the wrong type; export it again.",
            )
        return self.data.view(dtype).reshape(self.shape).astype(np.int64)

    def with_rows(self, order: IntArray) -> "StoredTensor":
        """Return the same tensor with its rows (a vector's elements) in another order, or fewer."""
        if len(self.shape) != 1:
            return replace(self, shape=(len(order), *self.shape[1:]), data=self.data[order])
        if GGML_QUANT_SIZES[self.type][0] != 1:
            raise TensorError(
                f"Tensor {self.name} is a vector packed as {self.type.name}; it cannot be sorted.",
                "Use the model with its vectors in F32 or F16.",
            )
        elements = self.data.reshape(self.shape[0], -1)
        return replace(self, shape=(len(order),), data=elements[order].reshape(1, -1))

    def with_turned_blocks(self, num_blocks: int) -> "StoredTensor":
        """Return a matrix cut into equal blocks of rows, every block transposed: its inputs, rows.

        Numbers that are packed together come back as float32, which holds them exactly.
        """
        is_packed = GGML_QUANT_SIZES[self.type][0] != 1
        data = self.to_float32().view(np.uint8) if is_packed else self.data
        stored_type = GGMLQuantizationType.F32 if is_packed else self.type
        num_rows, num_columns = self.shape
        numbers = data.reshape(num_blocks, num_rows // num_blocks, num_columns, -1)
        turned = np.ascontiguousarray(numbers.swapaxes(1, 2))
        shape = (num_blocks * num_columns, num_rows // num_blocks)
        return replace(self, shape=shape, type=stored_type, data=turned.reshape(shape[0], -1))
