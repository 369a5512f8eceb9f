"""GGUF's block types as MLX's affine groups: the same numbers, laid out as MLX reads them.

In:  a stored matrix. Out: levels, scales and biases, w = scale * level + bias for 32 numbers each.
Levels lie in one stream of bits per row, the lowest first. Nothing is rounded but what a scale that
is a product of two (K-quants) loses in float32. MLX's own matrices are taken as they are.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K
from numpy.typing import NDArray

from headlong.arrays import ByteArray, FloatArray
from headlong.weights.tensors import AffineType, GroupScales, StoredTensor, StoredType

GROUP = 32
"""Numbers that share a scale in all of GGUF's types."""


class Packing(NamedTuple):
    """How a matrix is cut into groups of numbers that share a scale and a bias."""

    bits: int
    group_size: int = GROUP
    scales_type: StoredType = GGMLQuantizationType.F16
    """What scales and biases are stored as."""


class AffineGroups(NamedTuple):
    """A matrix in groups of numbers that share a scale and a bias."""

    words: NDArray[np.uint32]  # (rows, columns * bits / 32)
    scales: FloatArray  # (rows, groups)
    biases: FloatArray  # (rows, groups)


_Blocks: TypeAlias = tuple[ByteArray, FloatArray, FloatArray]
"""Levels (blocks, numbers of a block), and scales and biases (blocks, groups of a block)."""


def packing_of(tensor: StoredTensor) -> Packing | None:
    """Return how a matrix can be repacked; None where affine groups cannot hold its type."""
    kind = tensor.type
    if isinstance(kind, AffineType):
        assert isinstance(tensor.scales, GroupScales), "such a type comes with its scales"
        return Packing(kind.bits, kind.group_size, tensor.scales.scales.type)
    return Packing(int(kind.name[1])) if kind in READERS else None


def repack(tensor: StoredTensor) -> AffineGroups:
    """Return a matrix that has a packing."""
    kind = tensor.type
    if isinstance(tensor.scales, GroupScales):
        beside = tensor.scales
        words = np.ascontiguousarray(tensor.data).view(np.uint32)
        return AffineGroups(words, beside.scales.to_float32(), beside.minimums.to_float32())
    assert isinstance(kind, GGMLQuantizationType), "all other packings are of GGUF's types"
    num_rows = len(tensor.data)
    blocks = np.ascontiguousarray(tensor.data).reshape(-1, GGML_QUANT_SIZES[kind][1])
    levels, scales, biases = READERS[kind](blocks)
    words = pack_levels(levels.reshape(num_rows, -1), int(kind.name[1]))
    return AffineGroups(words, scales.reshape(num_rows, -1), biases.reshape(num_rows, -1))


def pack_levels(levels: ByteArray, bits: int) -> NDArray[np.uint32]:
    """Put levels into one stream of bits per row, the lowest first: (rows, columns)."""
    if bits == 8:
        return np.ascontiguousarray(levels).view(np.uint32)
    eights = levels.reshape(len(levels), -1, 8).astype(np.uint64)
    stream = np.zeros(eights.shape[:2], dtype=np.uint64)
    for place in range(8):
        stream |= eights[..., place] << np.uint64(place * bits)
    parts = stream[..., None].view(np.uint8)[..., :bits]  # eight levels fill so many bytes
    return np.ascontiguousarray(parts).reshape(len(levels), -1).view(np.uint32)


def _halves(blocks: ByteArray, first: int, count: int) -> FloatArray:
    halves = np.ascontiguousarray(blocks[:, first : first + 2 * count]).view(np.float16)
    return halves.astype(np.float32)


def _nibbles(packed: ByteArray) -> ByteArray:
    """Return the low halves of some bytes and then their high ones."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _fifth_bits(blocks: ByteArray, first: int) -> ByteArray:
    bits = np.unpackbits(blocks[:, first : first + 4], axis=-1, bitorder="little")
    return bits << np.uint8(4)


def _q4_0(blocks: ByteArray) -> _Blocks:
    scale = _halves(blocks, 0, 1)
    return _nibbles(blocks[:, 2:]), scale, -8 * scale


def _q4_1(blocks: ByteArray) -> _Blocks:
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0, 1), _halves(blocks, 2, 1)


def _q5_0(blocks: ByteArray) -> _Blocks:
    scale = _halves(blocks, 0, 1)
    return _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), scale, -16 * scale


def _q5_1(blocks: ByteArray) -> _Blocks:
    levels = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return levels, _halves(blocks, 0, 1), _halves(blocks, 2, 1)


def _q8_0(blocks: ByteArray) -> _Blocks:
    scale = _halves(blocks, 0, 1)
    return blocks[:, 2:] ^ np.uint8(128), scale, -128 * scale  # two's complement, moved up by 128


def _k_scales(blocks: ByteArray) -> tuple[FloatArray, FloatArray]:
    """Return scales and biases of the eight groups of a K-quant's block."""
    factors, minimums = Q4_K.get_scale_min(blocks[:, 4:16])
    scales: FloatArray = _halves(blocks, 0, 1) * factors.astype(np.float32)
    biases: FloatArray = -_halves(blocks, 2, 1) * minimums.astype(np.float32)
    return scales, biases


def _q4_k(blocks: ByteArray) -> _Blocks:
    return _nibbles(blocks[:, 16:].reshape(-1, 4, GROUP)), *_k_scales(blocks)


def _q5_k(blocks: ByteArray) -> _Blocks:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, GROUP)).reshape(-1, 8, GROUP)
    places = np.arange(8, dtype=np.uint8)[:, None]
    high = (blocks[:, None, 16:48] >> places & np.uint8(1)) << np.uint8(
        4
    )  # group g has bit g of every byte
    return low | high, *_k_scales(blocks)


READERS: dict[GGMLQuantizationType, Callable[[ByteArray], _Blocks]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
}
"""How each type of GGUF is taken apart; its name says how many bits a level has."""
