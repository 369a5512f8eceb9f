"""Matrices of 4- and 8-bit levels on the device, as the GPU's kernels read them.

    as stored              kept as      group  scales        bits a number
    Q4_0                   4 bits       32     f16           4.5      exact
    Q4_1                   4 bits       32     f16, minimum  5        exact
    Q4_K                   4 bits       32     f16, minimum  5        scales rounded to binary16
    Q5_0, Q5_1             8 bits       32     f16 (minimum) 8.5, 9   exact
    Q5_K                   8 bits       32     f16, minimum  9        scales rounded to binary16
    Q6_K                   8 bits       16     f16           9        scales rounded to binary16
    Q8_0                   8 bits       32     f16           8.5      exact
    all others             16 bits      -      -             16       in the type of activations

A number is scale * level + minimum, in float32, rounded to the activations' type as it is used; a
scale rounded to binary16 (11 bits) moves it by less than that (8 bits in bfloat16). Rows that are
not whole chunks of 64 are kept in 16 bits.
In:  stored tensors. Out: `PackedMatrix`, or None where 16 bits are to be used.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from headlong.arrays import ByteArray, FloatArray
from headlong.ops.mlx.packing import READERS
from headlong.ops.torch.weights import TorchMatrix
from headlong.weights.tensors import StoredTensor

CHUNK = 64
"""Inputs whose levels lie together; 4-bit ones as 32 bytes, the first 32 in their low halves.

Chunks lie one after the other, each with all outputs: what a kernel reads at once is in one piece.
"""

_BYTES_AT_ONCE = 2**25
_ASKED = {"q4": GGMLQuantizationType.Q4_1, "q8": GGMLQuantizationType.Q8_0}
"""What numbers are rounded to where a format is asked for; others are kept in 16 bits."""


class Packing(NamedTuple):
    """How a matrix is kept."""

    bits: int
    group: int
    has_minimums: bool

    @property
    def name(self) -> str:
        """Levels and what is beside them, as `q4 + minimum`."""
        groups = "" if self.group == 32 else f", groups of {self.group}"
        return f"q{self.bits}{' with minimums' if self.has_minimums else ''}{groups}"

    def num_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a matrix."""
        scales = outputs * inputs // self.group * 2 * (1 + self.has_minimums)
        return outputs * inputs * self.bits // 8 + scales


_PACKINGS = {
    "Q4_0": Packing(4, 32, False),
    "Q4_1": Packing(4, 32, True),
    "Q4_K": Packing(4, 32, True),
    "Q5_0": Packing(8, 32, False),
    "Q5_1": Packing(8, 32, True),
    "Q5_K": Packing(8, 32, True),
    "Q6_K": Packing(8, 16, False),
    "Q8_0": Packing(8, 32, False),
}


class PackedMatrix:
    """A matrix of levels, which the plain op set reads unpacked."""

    __slots__ = ("_tile", "dtype", "levels", "packing", "words")

    def __init__(self, packing: Packing, levels: Tensor, words: Tensor, dtype: torch.dtype) -> None:
        self.packing = packing
        self.levels = levels  # (chunks, outputs, bytes of a chunk) uint8
        self.words = words  # (chunks, 1 or 2, outputs) int32: pairs of scales, pairs of minimums
        self.dtype = dtype
        self._tile: int | None = None

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Put matrices of one packing under one another; the parts become views."""
        first, sizes = parts[0], [part.num_outputs for part in parts]
        levels = torch.cat([part.levels for part in parts], 1)
        words = torch.cat([part.words for part in parts], 2)
        views = zip(parts, levels.split(sizes, 1), words.split(sizes, 2), strict=True)
        for part, own_levels, own_words in views:
            part.levels, part.words = own_levels, own_words
        return cls(first.packing, levels, words, first.dtype)

    @property
    def num_outputs(self) -> int:
        """Rows of the matrix."""
        return int(self.levels.shape[1])

    @property
    def num_inputs(self) -> int:
        """Columns of the matrix."""
        return len(self.levels) * CHUNK

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return int(self.levels.nbytes + self.words.nbytes)

    @property
    def values(self) -> Tensor:
        """All numbers, unpacked for this call: (outputs, inputs)."""
        return self._unpacked(self.levels, self.words)

    def rows(self, indices: Tensor) -> Tensor:
        """Return some rows, unpacked."""
        return self._unpacked(self.levels[:, indices], self.words[:, :, indices])

    def times(self, x: Tensor) -> Tensor:
        """Multiply every row as if it were alone: (N, inputs) → (N, outputs)."""
        matrix = TorchMatrix(self.values, self._tile)
        product = matrix.times(x)
        self._tile = matrix.tile
        return product

    def _unpacked(self, levels: Tensor, words: Tensor) -> Tensor:
        bits, group, has_minimums = self.packing
        if bits == 4:
            levels = torch.cat([levels & 15, levels >> 4], -1)
        wide = levels.float() - (0 if has_minimums else 2 ** (bits - 1))
        num_chunks, num_rows = levels.shape[:2]
        in_order = words.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        halves = in_order.view(torch.float16).float()
        scales = halves[..., : CHUNK // group, None]  # (chunks, outputs, groups of a chunk, 1)
        numbers = wide.view(num_chunks, num_rows, -1, group) * scales
        if has_minimums:
            numbers = numbers + halves[..., CHUNK // group :, None]
        return numbers.to(self.dtype).transpose(0, 1).reshape(num_rows, num_chunks * CHUNK)


def packing_for(tensor: StoredTensor, quant: str | None) -> Packing | None:
    """Return how a tensor is kept; None for 16 bits."""
    if len(tensor.shape) != 2 or tensor.shape[1] % CHUNK:
        return None
    if quant is not None:
        return _PACKINGS[_ASKED[quant].name] if quant in _ASKED else None
    return _PACKINGS.get(tensor.type.name)


def pack(
    tensor: StoredTensor,
    quant: str | None,
    place: Callable[[FloatArray | ByteArray], Tensor],
    dtype: torch.dtype,
) -> PackedMatrix:
    """Pack a tensor that has a packing, a block of rows at a time; `place` puts on the device."""
    packing = packing_for(tensor, quant)
    assert packing is not None
    blocks = [_pack_rows(block, quant, packing) for block in tensor.row_blocks(_BYTES_AT_ONCE)]
    levels, halves = (
        torch.cat([place(part) for part in parts]) for parts in zip(*blocks, strict=True)
    )
    words = halves.view(torch.int32).permute(1, 2, 0).contiguous()
    return PackedMatrix(packing, levels.transpose(0, 1).contiguous(), words, dtype)


def _pack_rows(
    tensor: StoredTensor, quant: str | None, packing: Packing
) -> tuple[ByteArray, ByteArray]:
    """Return levels, (rows, chunks, bytes), and scales, then minimums: (rows, chunks, halves)."""
    num_rows, num_chunks = tensor.shape[0], tensor.shape[1] // CHUNK
    kind, data = tensor.type, tensor.data
    if quant is not None and kind != _ASKED[quant]:
        kind, data = _ASKED[quant], quantize(tensor.to_float32(), _ASKED[quant])
    assert isinstance(kind, GGMLQuantizationType)
    blocks = np.ascontiguousarray(data).reshape(-1, GGML_QUANT_SIZES[kind][1])
    levels, *halves = READERS[kind](blocks) if kind in READERS else _q6_k(blocks)
    levels = levels.reshape(num_rows, num_chunks, CHUNK)
    if packing.bits == 4:
        levels = levels[..., : CHUNK // 2] | levels[..., CHUNK // 2 :] << np.uint8(4)
    elif not packing.has_minimums:
        levels = levels + np.uint8(128 - _ZERO[kind])
    kept = halves if packing.has_minimums else halves[:1]
    joined = [half.reshape(num_rows, num_chunks, -1).astype(np.float16) for half in kept]
    return levels, np.concatenate(joined, -1)


_ZERO = {
    GGMLQuantizationType.Q5_0: 16,
    GGMLQuantizationType.Q8_0: 128,
    GGMLQuantizationType.Q6_K: 32,
}
"""The level that means 0, in types of 8-bit levels without minimums."""


def _q6_k(blocks: ByteArray) -> tuple[ByteArray, FloatArray]:
    """Return levels and scales of Q6_K: 256 numbers, a scale for every 16."""
    low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    factors = blocks[:, 192:208].view(np.int8).astype(np.float32)
    scale = blocks[:, 208:210].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=-1).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    levels = nibbles | (high >> shifts & 3) << 4
    return levels.reshape(len(blocks), -1), scale * factors
