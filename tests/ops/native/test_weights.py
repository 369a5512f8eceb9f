"""Packed weights mean exactly what the file says, for every format and set of kernels."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headlong.errors import BackendError, TensorError
from headlong.ops.native.weights import packed_bytes, packed_format
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.tensors import StoredTensor
from native_parts import EXACT_TYPES, INSTRUCTION_SETS, native_ops, random, random_matrix, stored

FORM = {
    "Q4_K": ("q4", "nested"),
    "Q6_K": ("q6", "nested"),
    "Q8_0": ("q8", "one"),
    "BF16": ("bf16", "one"),
}


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", EXACT_TYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(37, 96), (16, 32), (1, 64)])
def test_packed_weights_are_the_file_s_numbers(
    instruction_set: str, type_name: str, outputs: int, inputs: int
) -> None:
    ops = native_ops(instruction_set)
    tensor = random_matrix(type_name, 1, outputs, inputs)
    matrix = ops.matrix(tensor)
    assert np.array_equal(ops.embed(matrix, np.arange(outputs)), tensor.to_float32())
    assert matrix.format == ops.matrix_format(tensor) == type_name.lower().split("_")[0]


@pytest.mark.parametrize("type_name", EXACT_TYPES)
def test_packed_weights_take_hardly_more_than_the_file_s_bytes(type_name: str) -> None:
    tensor = random_matrix(type_name, 2, 48, 512)
    assert tensor.num_bytes <= packed_bytes(tensor) <= 1.03 * tensor.num_bytes
    assert native_ops("auto").matrix(tensor).num_bytes == packed_bytes(tensor)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_other_types_go_to_the_nearest_of_255_levels(instruction_set: str) -> None:
    ops = native_ops(instruction_set)
    data = np.random.default_rng(2).integers(0, 256, (24, 110), dtype=np.uint8)
    data[:, -2:] = np.array([0.01], "<f2").view(np.uint8)
    tensor = StoredTensor("test.weight", (24, 256), GGMLQuantizationType.Q3_K, data)
    values = tensor.to_float32().reshape(24, -1, 32)
    unpacked = ops.embed(ops.matrix(tensor), np.arange(24)).reshape(values.shape)
    # Half a level, and as much again for the largest value, whose level the 16-bit scale moves.
    level = np.abs(values).max(axis=-1, keepdims=True) / 127
    assert (np.abs(unpacked - values) <= level * 0.57).all()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("num_groups", [1, 3, 8, 11])
def test_sixteen_numbers_share_a_scale_in_six_bits(
    instruction_set: str, type_name: str, num_groups: int
) -> None:
    """Rows need not be whole blocks of 256, though files have none that are not."""
    ops = native_ops(instruction_set)
    tensor = stored(type_name, random(8, 19, num_groups * 32))
    values = tensor.to_float32().reshape(19, -1, 16)
    unpacked = ops.embed(ops.matrix(tensor, "q6"), np.arange(19)).reshape(values.shape)
    # Half a level, and what rounding the scale to one of 127 costs the outermost level.
    largest = np.abs(values).max(axis=-1, keepdims=True)
    bound = largest / 62 + np.abs(tensor.to_float32()).max(axis=-1)[:, None, None] / 254
    assert (np.abs(unpacked - values) <= bound).all()


@pytest.mark.parametrize(
    ("quant", "bound"), [("q4", 0.04), ("q5", 0.02), ("q6", 0.01), ("q8", 0.003), ("f16", 3e-4)]
)
def test_a_format_that_is_asked_for_is_taken(quant: str, bound: float) -> None:
    ops = native_ops("portable")
    tensor = stored("F32", random(4, 20, 128))
    matrix = ops.matrix(tensor, quant)
    values = tensor.to_float32()
    error = np.linalg.norm(ops.embed(matrix, np.arange(20)) - values) / np.linalg.norm(values)
    assert matrix.format == quant == ops.matrix_format(tensor, quant)
    assert 0 < error < bound * 2
    assert packed_bytes(tensor, quant) < tensor.num_bytes


@pytest.mark.parametrize("type_name", EXACT_TYPES)
@pytest.mark.parametrize("quant", ["q4", "q5", "q6", "q8", "f16", "bf16", "f32"])
def test_types_are_rounded_to_a_format_as_their_numbers_are(type_name: str, quant: str) -> None:
    ops = native_ops("auto")
    tensor = random_matrix(type_name, 11, 21, 96)
    numbers = stored("F32", tensor.to_float32())
    rounded = ops.embed(ops.matrix(tensor, quant), np.arange(21))
    if quant == type_name.lower().split("_")[0]:  # kept as they are
        assert np.array_equal(rounded, tensor.to_float32())
    else:
        assert np.array_equal(rounded, ops.embed(ops.matrix(numbers, quant), np.arange(21)))


@pytest.mark.parametrize("inputs", [32, 256, 352])
def test_the_oracle_rounds_to_the_same_six_bits(inputs: int) -> None:
    tensor = stored("F32", random(9, 30, inputs))
    ops = native_ops("auto")
    packed = ops.embed(ops.matrix(tensor, "q6"), np.arange(30))
    rounded = NumpyOps().matrix(tensor, "q6").values
    # A number in the middle of two levels may go to either.
    assert np.isclose(packed, rounded, rtol=1e-6, atol=0).mean() > 0.999


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "Q8_0", "BF16"])
def test_rows_are_packed_in_any_cuts_by_any_team(instruction_set: str, type_name: str) -> None:
    tensor = random_matrix(type_name, 10, 75, 64)
    expected = tensor.to_float32()
    for threads in (1, 2, 3):
        ops = native_ops(instruction_set, threads)
        matrix = ops.engine.make_matrix(*FORM[type_name], *tensor.shape)
        for first, stop in ((40, 75), (0, 1), (3, 40), (1, 3)):
            ops.engine.pack_rows(matrix, type_name, first, tensor.data[first:stop])
        assert np.array_equal(ops.embed(matrix, np.arange(75)), expected)


def test_scales_that_a_format_lacks_are_refused() -> None:
    engine = native_ops("portable").engine
    for form in (("q8", "nested"), ("q6", "one"), ("f16", "nested")):
        with pytest.raises(ValueError, match="other scales"):
            engine.make_matrix(*form, 4, 32)
    for word in (("q3", "one"), ("q4", "three")):
        with pytest.raises(ValueError, match="unknown"):
            engine.make_matrix(*word, 4, 32)
    matrix = engine.make_matrix("q4", "two", 1, 32)
    with pytest.raises(ValueError, match="type of rows 'Q2_K' is unknown"):
        engine.pack_rows(matrix, "Q2_K", 0, np.zeros((1, 84), np.uint8))


@pytest.mark.parametrize("quant", ["q4", "q5", "q6", "q8"])
def test_numbers_too_small_for_a_scale_become_zero(quant: str) -> None:
    ops = native_ops("auto")
    tensor = stored("F32", random(12, 3, 64) * np.float32(1e-38))
    assert not ops.embed(ops.matrix(tensor, quant), np.arange(3)).any()


def test_rows_that_are_no_whole_groups_stay_floats() -> None:
    tensor = stored("F32", random(5, 4, 20))
    assert np.array_equal(NumpyOps().matrix(tensor, "q6").values, tensor.to_float32())
    assert packed_format(tensor, "q8") == "f32"
    assert native_ops("portable").matrix(tensor, "q4").format == "f32"


def test_unknown_formats_are_refused_by_name() -> None:
    with pytest.raises(BackendError, match="q3"):
        native_ops("portable").matrix(stored("F32", random(6, 4, 32)), "q3")


def test_vectors_are_no_matrices() -> None:
    vector = StoredTensor("norm", (32,), GGMLQuantizationType.F32, np.zeros((1, 128), np.uint8))
    with pytest.raises(TensorError, match=r"norm.*\(32,\)"):
        native_ops("portable").matrix(vector)


@pytest.mark.parametrize("quant", ["q4", "q5", "q6", "q8"])
@pytest.mark.parametrize("broken", [np.inf, np.nan])
def test_numbers_no_scale_can_hold_are_refused(quant: str, broken: float) -> None:
    values = random(7, 80, 32)
    values[72, 5] = broken  # not in the part that the calling thread packs
    with pytest.raises(TensorError, match=rf"test\.weight.*{quant}"):
        native_ops("portable").matrix(stored("F32", values), quant)
