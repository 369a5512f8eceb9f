"""Which packed format a stored tensor takes in the native backend, and the packing itself.

    as stored                      packed as            exact
    Q4_0, Q4_1                     q4                   bit for bit
    Q8_0                           q8                   bit for bit
    F16, BF16, F32                 f16, bf16, f32       bit for bit
    Q4_K                           q4                   weights bit for bit, scales to 16 bits
    Q5_*, Q6_K, Q2_K, Q3_K, others q8                   to the nearest of 255 levels per group
    F8_E4M3 with scales of blocks  q8                   the same
    rows that are not whole groups of 32, where q4 or q8 would be: f32

A caller may ask for another format; tensors are then unpacked a block of rows at a time, so that
two full copies never exist.
"""

import numpy as np
from gguf import GGMLQuantizationType

from headlong.errors import BackendError, TensorError
from headlong.ops import _native
from headlong.weights.tensors import StoredTensor, StoredType

FORMATS = ("q4", "q8", "f16", "bf16", "f32")
GROUP = 32

_DIRECT: dict[StoredType, str] = {
    GGMLQuantizationType.Q4_0: "q4",
    GGMLQuantizationType.Q4_1: "q4",
    GGMLQuantizationType.Q4_K: "q4",
    GGMLQuantizationType.Q8_0: "q8",
    GGMLQuantizationType.F16: "f16",
    GGMLQuantizationType.BF16: "bf16",
    GGMLQuantizationType.F32: "f32",
    GGMLQuantizationType.F64: "f32",
}
_BITS = {"q4": 5.0, "q8": 8.5, "f16": 16.0, "bf16": 16.0, "f32": 32.0}


def packed_format(tensor: StoredTensor, quant: str | None = None) -> str:
    """Return the format `pack` gives a tensor: the asked one, or the nearest to its own."""
    if quant is not None and quant not in FORMATS:
        raise BackendError(
            f"There is no weight format {quant!r}.", f"Known are {', '.join(FORMATS)}."
        )
    wanted = quant or _DIRECT.get(tensor.type, "q8")
    if wanted in ("q4", "q8") and tensor.shape[-1] % GROUP:
        return "f32"
    return wanted


def packed_bytes(tensor: StoredTensor, quant: str | None = None) -> int:
    """Return the bytes a tensor takes when packed, but for padding."""
    return int(np.prod(tensor.shape) * _BITS[packed_format(tensor, quant)] / 8)


def pack(engine: _native.Engine, tensor: StoredTensor, quant: str | None = None) -> _native.Matrix:
    """Pack a stored (outputs, inputs) tensor."""
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise TensorError(
            f"Tensor {tensor.name} has the shape {tensor.shape}; a matrix has rows and columns.",
            "The file is damaged or of another model; download it again.",
        )
    outputs, inputs = tensor.shape
    target = packed_format(tensor, quant)
    matrix = engine.make_matrix(target, outputs, inputs)
    is_direct = _DIRECT.get(tensor.type) == target and tensor.type != GGMLQuantizationType.F64
    first = 0
    try:
        for block in tensor.row_blocks():
            if is_direct:
                data = np.ascontiguousarray(block.data)
                engine.pack_rows(matrix, tensor.type.name, first, data)
            else:
                values = block.to_float32().view(np.uint8).reshape(len(block.data), -1)
                engine.pack_rows(matrix, "F32", first, values)
            first += len(block.data)
    except ValueError as error:
        raise TensorError(
            f"Tensor {tensor.name} cannot be packed as {target}: {error}.",
            "Choose another weight format (quant='f32'), or use another copy of the file.",
        ) from error
    return matrix
