"""Which packed format a stored tensor takes in the native backend, and the packing itself.

    as stored          packed as         scales                         bits a number (as stored)
    Q4_0               q4                16 bits for every 32           4.5 (4.5)
    Q4_1               q4                and a minimum of 16 bits       5 (5)
    Q4_K               q4                8 bits twice, 32 for every 256 4.625 (4.5)
    Q5_0, Q5_1, Q5_K   q5                likewise                       5.5, 6, 5.625 (5.5, 6, 5.5)
    Q6_K               q6                8 bits for every 16,           6.625 (6.5625)
                                         32 for every 256
    Q8_0               q8                16 bits for every 32           8.5 (8.5)
    F16, BF16, F32     f16, bf16, f32                                   16, 16, 32
    MLX, 2 to 4 bits   q4                16 bits and a minimum of 16    5, or 4.5 for wider groups
    5 bits             q5                bits for every 32, or for      6, 5.5
    6 and 8 bits       q8                every 64 of wider groups       9, 8.5

All of these bit for bit, MLX's too where binary16 holds their scales: those in bfloat16 are stored
in multiples of a power of two. Other types (Q2_K, Q3_K, F8_E4M3 with scales of blocks, …) go to the
nearest of 255 levels (q8). A caller may ask for another format: q4 and q5 then have a scale and a
minimum for every 32 numbers. Rows that are not whole groups of 32 are f32 where they would be
quantised. Tensors are read a block of rows at a time, so that two full copies never exist.
"""

import numpy as np
from gguf import GGMLQuantizationType

from headlong.errors import BackendError, TensorError
from headlong.ops import _native
from headlong.weights.tensors import AffineType, GroupScales, StoredTensor

FORMATS = ("q4", "q5", "q6", "q8", "f16", "bf16", "f32")
GROUP = 32

# Format and kind of scales by the name of a stored type.
_DIRECT = {
    "Q4_0": ("q4", "one"),
    "Q4_1": ("q4", "two"),
    "Q4_K": ("q4", "nested"),
    "Q5_0": ("q5", "one"),
    "Q5_1": ("q5", "two"),
    "Q5_K": ("q5", "nested"),
    "Q6_K": ("q6", "nested"),
    "Q8_0": ("q8", "one"),
    "F16": ("f16", "one"),
    "BF16": ("bf16", "one"),
    "F32": ("f32", "one"),
}
# The kind of scales where numbers are rounded to a format that was asked for.
_ROUNDED = {"q4": "two", "q5": "two", "q6": "nested"}
_BITS = {"q4": 4, "q5": 5, "q6": 6, "q8": 8, "f16": 16, "bf16": 16, "f32": 32}
_SCALE_BITS = {"one": 0.5, "two": 1.0, "wide": 0.5, "nested": 0.625}
_LEVELS = {2: "q4", 3: "q4", 4: "q4", 5: "q5", 6: "q8", 8: "q8"}
"""The format that holds levels of so many bits."""

_TOP_EXPONENT = 15
"""Numbers below two to this power are far below the largest of binary16."""

_BYTES_AT_ONCE = 2**23
"""Of a block that the kernels can read: work for the whole team, and little beside the weights."""


def packed_format(tensor: StoredTensor, quant: str | None = None) -> str:
    """Return the format `pack` gives a tensor: the asked one, or the nearest to its own."""
    return _target(tensor, quant)[0]


def packed_bytes(tensor: StoredTensor, quant: str | None = None) -> int:
    """Return the bytes a tensor takes when packed, but for padding."""
    target, scales = _target(tensor, quant)
    bits = _BITS[target] + (_SCALE_BITS[scales] if _BITS[target] < 16 else 0)
    return int(np.prod(tensor.shape) * bits / 8)


def pack(engine: _native.Engine, tensor: StoredTensor, quant: str | None = None) -> _native.Matrix:
    """Pack a stored (outputs, inputs) tensor."""
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise TensorError(
            f"Tensor {tensor.name} has the shape {tensor.shape}; a matrix has rows and columns.",
            "The file is damaged or of another model; download it again.",
        )
    outputs, inputs = tensor.shape
    target, scales = _target(tensor, quant)
    groups = tensor.scales if isinstance(tensor.scales, GroupScales) else None
    unit = _unit(groups) if groups is not None and target == _own(tensor)[0] else None
    matrix = engine.make_matrix(target, scales, outputs, inputs, unit or 1.0)
    is_read = unit is not None or tensor.type.name in _DIRECT
    first = 0
    try:
        for block in tensor.row_blocks(_BYTES_AT_ONCE if is_read else None):
            if unit is not None:
                _pack_affine(engine, matrix, first, block, unit)
            elif is_read:
                engine.pack_rows(matrix, block.type.name, first, np.ascontiguousarray(block.data))
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


def _target(tensor: StoredTensor, quant: str | None) -> tuple[str, str]:
    """Return format and kind of scales of a packed tensor."""
    if quant is not None and quant not in FORMATS:
        raise BackendError(
            f"There is no weight format {quant!r}.", f"Known are {', '.join(FORMATS)}."
        )
    own, scales = _own(tensor)
    target = quant or own
    if _BITS[target] < 16 and tensor.shape[-1] % GROUP:
        return "f32", "one"
    return target, scales if target == own else _ROUNDED.get(target, "one")


def _own(tensor: StoredTensor) -> tuple[str, str]:
    """Return format and kind of scales of a tensor that is packed as it is, or nearest to that."""
    if isinstance(tensor.type, AffineType):
        return _LEVELS[tensor.type.bits], "two" if tensor.type.group_size == GROUP else "wide"
    return _DIRECT.get(tensor.type.name, ("f32" if tensor.type.name == "F64" else "q8", "one"))


def _unit(scales: GroupScales) -> float:
    """Return the power of two that scales are stored in multiples of: 1 if they are binary16.

    Binary16 has more digits than bfloat16 but far fewer powers of two: the largest go to its top.
    """
    if scales.scales.type == GGMLQuantizationType.F16:
        return 1.0
    parts = (scales.scales.to_float32(), scales.minimums.to_float32())
    _, exponent = np.frexp(max(float(np.abs(part).max()) for part in parts))
    return 2.0 ** (int(exponent) - _TOP_EXPONENT)


def _pack_affine(
    engine: _native.Engine, matrix: _native.Matrix, first: int, block: StoredTensor, unit: float
) -> None:
    assert isinstance(block.type, AffineType)
    assert isinstance(block.scales, GroupScales)
    halves = []
    for part in (block.scales.scales, block.scales.minimums):
        numbers = part.to_float32() / np.float32(unit)
        if not np.isfinite(numbers).all():
            raise ValueError("its scales are not finite")
        halves.append(numbers.astype("<f2").view(np.uint8))
    data = np.ascontiguousarray(block.data)
    engine.pack_affine(matrix, block.type.bits, first, data, *halves)
