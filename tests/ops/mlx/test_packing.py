"""GGUF's blocks as affine groups: the same numbers."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from float8_files import write_safetensors
from headlong.arrays import FloatArray
from headlong.ops.mlx.packing import (
    GROUP,
    READERS,
    AffineGroups,
    Packing,
    pack_levels,
    packing_of,
    repack,
)
from headlong.weights.mlx_groups import join_group_scales
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.tensors import StoredTensor
from mlx_files import quantise

ROWS, COLUMNS = 6, 512


def random_blocks(kind: GGMLQuantizationType) -> StoredTensor:
    """Return a matrix of random levels; K-quants have no packer here, so it is made of bytes."""
    size, num_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(kind.value)
    shape = (ROWS, COLUMNS // size, num_bytes)
    blocks = rng.integers(0, 256, shape, dtype=np.uint8)
    halves = rng.uniform(0.01, 1, (*shape[:2], 2)).astype(np.float16)
    num_halves = 1 if kind.name.endswith("_0") else 2
    blocks[..., : 2 * num_halves] = halves[..., :num_halves].view(np.uint8)
    return StoredTensor("weight", (ROWS, COLUMNS), kind, blocks.reshape(ROWS, -1))


def read_back(groups: AffineGroups, packing: Packing) -> FloatArray:
    """Return the numbers of affine groups, read bit by bit."""
    bits = np.unpackbits(groups.words.view(np.uint8), axis=-1, bitorder="little")
    places = 1 << np.arange(packing.bits)
    levels = (bits.reshape(ROWS, -1, packing.bits) * places).sum(-1).astype(np.float32)
    by_group = levels.reshape(ROWS, -1, packing.group_size)
    values = by_group * groups.scales[..., None] + groups.biases[..., None]
    flat: FloatArray = values.reshape(ROWS, -1).astype(np.float32)
    return flat


@pytest.mark.parametrize("kind", READERS)
def test_repacked_blocks_hold_the_same_numbers(kind: GGMLQuantizationType) -> None:
    tensor = random_blocks(kind)
    packing = packing_of(tensor)
    assert packing == Packing(int(kind.name[1]))
    expected = dequantize(tensor.data, kind)
    np.testing.assert_allclose(read_back(repack(tensor), packing), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("bits", "group_size", "dtype"), [(4, 64, "BF16"), (3, 32, "F16")])
def test_mlx_files_are_taken_as_they_are(
    tmp_path: Path, bits: int, group_size: int, dtype: str
) -> None:
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    words, scales, biases = quantise(values, bits, group_size, dtype)
    stored = {"w.weight": ("U32", words), "w.scales": (dtype, scales), "w.biases": (dtype, biases)}
    write_safetensors(tmp_path / "m", stored)
    config = {"quantization": {"group_size": group_size, "bits": bits}}
    tensor = join_group_scales(config, read_safetensors(tmp_path / "m"))["w.weight"]
    packing, groups = packing_of(tensor), repack(tensor)
    assert packing == Packing(bits, group_size, GGMLQuantizationType[dtype])
    assert np.array_equal(groups.words, words)
    assert np.array_equal(read_back(groups, packing), tensor.to_float32())


def test_only_types_of_whole_groups_can_be_repacked() -> None:
    blocks = np.zeros((ROWS, 420), dtype=np.uint8)
    tensor = StoredTensor("weight", (ROWS, COLUMNS), GGMLQuantizationType.Q6_K, blocks)
    assert packing_of(tensor) is None


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_levels_lie_as_mlx_packs_them(bits: int) -> None:
    mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
    levels = np.random.default_rng(bits).integers(0, 2**bits, (ROWS, 64), dtype=np.uint8)
    levels[:, ::GROUP], levels[:, 1::GROUP] = 0, 2**bits - 1  # so that a level is a step
    words, scales, biases = mx.quantize(mx.array(levels.astype(np.float32)), GROUP, bits)
    ours = mx.array(pack_levels(levels, bits))
    found = mx.dequantize(ours, mx.ones_like(scales), mx.zeros_like(biases), GROUP, bits)
    assert np.array_equal(np.array(found), levels)
    assert ours.shape == words.shape
