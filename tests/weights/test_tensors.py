"""Stored tensors: every type unpacks as the format says, twice over for the common ones."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from headlong.arrays import ByteArray
from headlong.errors import TensorError
from headlong.weights.gguf_file import read_gguf
from headlong.weights.tensors import StoredTensor
from raw_gguf import gguf_file, tensor_info

FLOAT_TYPES = ["F32", "F16", "BF16"]
BLOCK_TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
NUM_ROWS, ROW_SIZE = 3, 512


def scalar_q8_0(block: bytes) -> list[float]:
    (scale,) = struct.unpack("<e", block[:2])
    return [scale * number for number in struct.unpack("<32b", block[2:])]


def scalar_q4_1(block: bytes) -> list[float]:
    scale, lowest = struct.unpack("<ee", block[:4])
    low = [scale * (byte & 15) + lowest for byte in block[4:]]
    high = [scale * (byte >> 4) + lowest for byte in block[4:]]
    return low + high


def scalar_q4_k(block: bytes) -> list[float]:
    """Eight groups of 32, each with a 6-bit scale and minimum squeezed into twelve bytes."""
    scale, lowest = struct.unpack("<ee", block[:4])
    packed, nibbles = block[4:16], block[16:]
    values = []
    for group in range(8):
        if group < 4:
            group_scale, group_lowest = packed[group] & 63, packed[group + 4] & 63
        else:
            group_scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            group_lowest = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        shift = 4 * (group % 2)
        for byte in nibbles[group // 2 * 32 : group // 2 * 32 + 32]:
            values.append(scale * group_scale * (byte >> shift & 15) - lowest * group_lowest)
    return values


def random_rows(kind: GGMLQuantizationType, seed: int = 0) -> ByteArray:
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (NUM_ROWS, ROW_SIZE // block_size * block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("name", FLOAT_TYPES + BLOCK_TYPES)
def test_every_common_type_unpacks_as_the_gguf_library_does(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    rows = random_rows(kind)
    path = tmp_path / "m.gguf"
    info = tensor_info("w", (ROW_SIZE, NUM_ROWS), int(kind))
    path.write_bytes(gguf_file([], [info], rows.tobytes()))
    tensor = read_gguf(path).tensors["w"]
    with np.errstate(all="ignore"):
        expected = dequantize(rows, kind)
    assert tensor.shape == (NUM_ROWS, ROW_SIZE)
    assert tensor.num_bytes == rows.nbytes
    values = tensor.to_float32()
    assert values.dtype == np.float32
    assert np.array_equal(values, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "num_scales", "unpack"),
    [("Q8_0", 1, scalar_q8_0), ("Q4_1", 2, scalar_q4_1), ("Q4_K", 2, scalar_q4_k)],
)
def test_block_types_unpack_as_written_out_by_hand(
    name: str, num_scales: int, unpack: Callable[[bytes], list[float]]
) -> None:
    kind = GGMLQuantizationType[name]
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    rows = random_rows(kind, seed=1)
    blocks = rows.reshape(-1, block_bytes)
    scales = np.linspace(-2, 2, len(blocks) * num_scales).astype("<f2").view(np.uint8)
    blocks[:, : 2 * num_scales] = scales.reshape(len(blocks), -1)
    expected = [unpack(block.tobytes()) for block in blocks]
    values = StoredTensor("w", (NUM_ROWS, ROW_SIZE), kind, rows).to_float32()
    np.testing.assert_allclose(values.reshape(-1, block_size), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["Q8_1", "Q8_K", "Q1_0", "I32"])
def test_type_without_unpacking_is_refused_on_use(name: str) -> None:
    kind = GGMLQuantizationType[name]
    tensor = StoredTensor("blk.3.odd", (NUM_ROWS, ROW_SIZE), kind, random_rows(kind))
    with pytest.raises(TensorError) as caught:
        tensor.to_float32()
    assert "blk.3.odd" in caught.value.problem
    assert name in caught.value.problem
    assert "Q8_0" in caught.value.remedy


def test_float64_is_rounded_to_float32() -> None:
    data = np.array([[0.1, 2.0]]).view(np.uint8)
    tensor = StoredTensor("w", (2,), GGMLQuantizationType.F64, data)
    assert np.array_equal(tensor.to_float32(), np.array([0.1, 2.0], np.float32))


def test_float32_at_an_odd_address_comes_out_aligned() -> None:
    values = np.array([1, 2, 3], np.float32)
    buffer = np.frombuffer(b"x" + values.tobytes(), dtype=np.uint8)
    tensor = StoredTensor("w", (3,), GGMLQuantizationType.F32, buffer[1:].reshape(1, -1))
    unpacked = tensor.to_float32()
    assert unpacked.flags.aligned
    assert np.array_equal(unpacked, values)


def test_float32_is_not_copied() -> None:
    data = np.array([[1, 2]], np.float32).view(np.uint8)
    values = StoredTensor("w", (2,), GGMLQuantizationType.F32, data).to_float32()
    assert np.shares_memory(values, data)


@pytest.mark.parametrize(
    ("name", "dtype"), [("I8", "i1"), ("I16", "i2"), ("I32", "i4"), ("I64", "i8")]
)
def test_integers_come_out_as_int64(name: str, dtype: str) -> None:
    numbers = np.array([[-1, 0, 100]], dtype=f"<{dtype}")
    tensor = StoredTensor("d2t", (3,), GGMLQuantizationType[name], numbers.view(np.uint8))
    assert tensor.to_int64().dtype == np.int64
    assert tensor.to_int64().tolist() == [-1, 0, 100]


def test_floats_are_not_taken_for_integers() -> None:
    tensor = StoredTensor("d2t", (1,), GGMLQuantizationType.F32, np.zeros((1, 4), np.uint8))
    with pytest.raises(TensorError, match="d2t is stored as F32"):
        tensor.to_int64()


@pytest.mark.parametrize("name", ["F16", "Q4_1", "Q6_K"])
def test_rows_move_as_packed_bytes(name: str) -> None:
    kind = GGMLQuantizationType[name]
    tensor = StoredTensor("w", (NUM_ROWS, ROW_SIZE), kind, random_rows(kind))
    moved = tensor.with_rows(np.array([2, 0, 1]))
    assert moved.type == kind
    assert np.array_equal(moved.to_float32(), tensor.to_float32()[[2, 0, 1]], equal_nan=True)


def test_elements_of_a_vector_move_as_its_rows() -> None:
    data = np.array([[1, 2, 3]], np.float32).view(np.uint8)
    moved = StoredTensor("b", (3,), GGMLQuantizationType.F32, data).with_rows(np.array([1, 2, 0]))
    assert moved.data.shape == (1, 12)
    assert moved.to_float32().tolist() == [2, 3, 1]


def test_packed_vector_cannot_be_sorted() -> None:
    kind = GGMLQuantizationType.Q8_0
    tensor = StoredTensor("b", (32,), kind, np.zeros((1, 34), np.uint8))
    with pytest.raises(TensorError, match="vector packed as Q8_0"):
        tensor.with_rows(np.arange(32))


def test_blocks_of_rows_are_the_tensor() -> None:
    """Also of a vector, and where rows are too long for more than one at a time."""
    for shape in ((5,), (7, 3), (3, 2**19 + 1), (2, 2**20 + 5)):
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        data = values.view(np.uint8).reshape(-1, shape[-1] * 4)
        tensor = StoredTensor("w", shape, GGMLQuantizationType.F32, data)
        blocks = [block.to_float32() for block in tensor.row_blocks()]
        assert np.array_equal(np.concatenate(blocks).reshape(shape), values)
        assert all(len(block) == 1 or block.size <= 2**20 for block in blocks)
        parts = list(tensor.row_blocks(40))
        assert np.array_equal(np.concatenate([part.data for part in parts]), data)
        assert all(len(part.data) == 1 or part.num_bytes <= 40 for part in parts)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_K"])
def test_turned_blocks_hold_the_same_numbers(name: str) -> None:
    kind = GGMLQuantizationType[name]
    tensor = StoredTensor("w", (NUM_ROWS, ROW_SIZE), kind, random_rows(kind))
    turned = tensor.with_transposed_blocks(NUM_ROWS)
    assert turned.shape == (NUM_ROWS * ROW_SIZE, 1)
    assert turned.type == (GGMLQuantizationType.F32 if name.startswith("Q") else kind)
    expected = tensor.to_float32().reshape(-1, 1)
    assert np.array_equal(turned.to_float32(), expected, equal_nan=True)
    whole = tensor.with_transposed_blocks(1).to_float32()
    assert np.array_equal(whole, tensor.to_float32().T, equal_nan=True)
