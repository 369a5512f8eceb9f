"""Packed weights mean exactly what the file says, for every format and set of kernels."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headlong.errors import BackendError, TensorError
from headlong.ops.native_weights import packed_bytes, packed_format
from headlong.weights.tensors import StoredTensor
from native_parts import EXACT_TYPES, INSTRUCTION_SETS, native_ops, random, stored


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", EXACT_TYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(37, 96), (16, 32), (1, 64)])
def test_packed_weights_are_the_file_s_numbers(
    instruction_set: str, type_name: str, outputs: int, inputs: int
) -> None:
    ops = native_ops(instruction_set)
    tensor = stored(type_name, random(1, outputs, inputs))
    unpacked = ops.embed(ops.matrix(tensor), np.arange(outputs))
    assert np.array_equal(unpacked, tensor.to_float32())


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", ["Q5_0", "Q5_1"])
def test_other_types_go_to_the_nearest_of_255_levels(instruction_set: str, type_name: str) -> None:
    ops = native_ops(instruction_set)
    tensor = stored(type_name, random(2, 24, 64))
    values = tensor.to_float32().reshape(24, -1, 32)
    unpacked = ops.embed(ops.matrix(tensor), np.arange(24)).reshape(values.shape)
    # Half a level, and as much again for the largest value, whose level the 16-bit scale moves.
    level = np.abs(values).max(axis=-1, keepdims=True) / 127
    assert (np.abs(unpacked - values) <= level * 0.57).all()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_q4_k_keeps_its_weights_and_rounds_its_scales(instruction_set: str) -> None:
    ops = native_ops(instruction_set)
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, (5, 2 * 144), dtype=np.uint8)
    for start in (0, 144):
        data[:, start : start + 4] = np.array([0.01, 0.02], "<f2").view(np.uint8)
    tensor = StoredTensor("test.weight", (5, 512), GGMLQuantizationType.Q4_K, data)
    unpacked = ops.embed(ops.matrix(tensor), np.arange(5))
    # Two 16-bit roundings: of scale × 15 and of the minimum.
    bound = 2**-11 * (15 * 0.01 * 63 + 0.02 * 63)
    assert np.abs(unpacked - tensor.to_float32()).max() <= bound
    assert packed_format(tensor) == "q4"


@pytest.mark.parametrize(("quant", "bound"), [("q4", 0.04), ("q8", 0.003), ("f16", 3e-4)])
def test_a_format_that_is_asked_for_is_taken(quant: str, bound: float) -> None:
    ops = native_ops("portable")
    tensor = stored("F32", random(4, 20, 128))
    matrix = ops.matrix(tensor, quant)
    values = tensor.to_float32()
    error = np.linalg.norm(ops.embed(matrix, np.arange(20)) - values) / np.linalg.norm(values)
    assert matrix.format == quant == ops.matrix_format(tensor, quant)
    assert 0 < error < bound * 2
    assert packed_bytes(tensor, quant) < tensor.num_bytes


def test_rows_that_are_no_whole_groups_stay_floats() -> None:
    tensor = stored("F32", random(5, 4, 20))
    assert packed_format(tensor, "q8") == "f32"
    assert native_ops("portable").matrix(tensor, "q4").format == "f32"


def test_unknown_formats_are_refused_by_name() -> None:
    with pytest.raises(BackendError, match="q3"):
        native_ops("portable").matrix(stored("F32", random(6, 4, 32)), "q3")


def test_vectors_are_no_matrices() -> None:
    vector = StoredTensor("norm", (32,), GGMLQuantizationType.F32, np.zeros((1, 128), np.uint8))
    with pytest.raises(TensorError, match=r"norm.*\(32,\)"):
        native_ops("portable").matrix(vector)


def test_numbers_no_scale_can_hold_are_refused() -> None:
    values = random(7, 4, 32)
    values[2, 5] = np.inf
    with pytest.raises(TensorError, match=r"test\.weight.*q8"):
        native_ops("portable").matrix(stored("F32", values), "q8")
