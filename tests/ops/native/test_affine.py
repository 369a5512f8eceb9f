"""MLX's matrices in the native backend: bit for bit, as small as the file, for all kernels."""

from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headlong.errors import TensorError
from headlong.ops.blocks import Linear
from headlong.ops.native.weights import packed_bytes
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.tensors import GroupScales, StoredTensor
from mlx_files import affine
from native_parts import INSTRUCTION_SETS, native_ops, random

FORMATS = {2: "q4", 3: "q4", 4: "q4", 5: "q5", 6: "q8", 8: "q8"}


def scaled(tensor: StoredTensor, factor: float) -> StoredTensor:
    """Return a bfloat16 matrix whose scales are multiplied with a power of two, all but a row's."""
    assert isinstance(tensor.scales, GroupScales)
    parts = []
    for part in (tensor.scales.scales, tensor.scales.minimums):
        values = part.to_float32()
        values[1:] *= np.float32(factor)
        data = (values.view("<u4") >> 16).astype("<u2").view(np.uint8)
        parts.append(replace(part, data=data))
    return replace(tensor, scales=GroupScales(*parts))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("bits", list(FORMATS))
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_packed_weights_are_the_file_s_numbers(
    instruction_set: str, bits: int, group_size: int, dtype: str
) -> None:
    ops = native_ops(instruction_set)
    tensor = affine(bits, group_size, dtype)
    matrix = ops.matrix(tensor)
    assert np.array_equal(ops.embed(matrix, np.arange(37)), tensor.to_float32())
    assert matrix.format == ops.matrix_format(tensor) == FORMATS[bits]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("bits", [4, 5, 8])
@pytest.mark.parametrize("group_size", [32, 64])
def test_a_product_is_that_of_the_numbers(instruction_set: str, bits: int, group_size: int) -> None:
    """Within what rounding activations to 8 bits costs."""
    ops = native_ops(instruction_set)
    tensor = affine(bits, group_size, "BF16")
    x = random(8, 11, 384)
    exact = x @ tensor.to_float32().T
    found = ops.project(x, Linear(ops.matrix(tensor)))
    assert np.linalg.norm(found - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (5, 64), (8, 32), (8, 64)])
def test_packed_weights_take_the_file_s_bytes(bits: int, group_size: int) -> None:
    tensor = affine(bits, group_size, "BF16", 48, 512)
    assert packed_bytes(tensor) == tensor.num_bytes
    assert native_ops("auto").matrix(tensor).num_bytes == tensor.num_bytes


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**24])
def test_scales_too_small_or_large_for_binary16_are_kept(factor: float) -> None:
    tensor = scaled(affine(4, 64, "BF16"), factor)
    ops = native_ops("auto")
    matrix = ops.matrix(tensor)
    assert np.array_equal(ops.embed(matrix, np.arange(37)), tensor.to_float32())
    x = random(9, 3, 384)
    exact = x @ tensor.to_float32().T
    assert np.allclose(ops.project(x, Linear(matrix)), exact, atol=0.02 * np.abs(exact).max())


def test_rows_are_packed_in_any_cuts() -> None:
    tensor = affine(4, 64, "F16")
    assert isinstance(tensor.scales, GroupScales)
    parts = (tensor.scales.scales, tensor.scales.minimums)
    halves = [part.data for part in parts]
    ops = native_ops("auto", 3)
    matrix = ops.engine.make_matrix("q4", "wide", *tensor.shape)
    for first, stop in ((20, 37), (0, 1), (3, 20), (1, 3)):
        rows = slice(first, stop)
        ops.engine.pack_affine(
            matrix, 4, first, tensor.data[rows], *(half[rows] for half in halves)
        )
    assert np.array_equal(ops.embed(matrix, np.arange(37)), tensor.to_float32())


@pytest.mark.parametrize("quant", ["q4", "q5", "q8", "bf16"])
def test_another_format_rounds_the_numbers(quant: str) -> None:
    ops = native_ops("auto")
    tensor = affine(6, 64, "F16")
    numbers = StoredTensor(
        "w", tensor.shape, GGMLQuantizationType.F32, tensor.to_float32().view(np.uint8)
    )
    if quant == "q8":  # is its own
        expected = tensor.to_float32()
    else:
        expected = ops.embed(ops.matrix(numbers, quant), np.arange(37))
    assert np.array_equal(ops.embed(ops.matrix(tensor, quant), np.arange(37)), expected)
    assert NumpyOps().matrix(tensor, quant).values.shape == tensor.shape


def test_scales_that_are_not_finite_are_refused() -> None:
    tensor = affine(4, 32, "F16")
    assert isinstance(tensor.scales, GroupScales)
    tensor.scales.scales.data[3, 1] = 0xFC  # the upper byte of an infinity
    tensor.scales.scales.data[3, 0] = 0
    with pytest.raises(TensorError, match="not finite"):
        native_ops("auto").matrix(tensor)


def test_matrices_of_another_form_take_no_such_rows() -> None:
    engine = native_ops("portable").engine
    levels, halves = np.zeros((1, 32), np.uint8), np.zeros((1, 4), np.uint8)
    for form in (("q4", "nested"), ("q4", "one"), ("q6", "nested"), ("q4", "wide")):
        with pytest.raises(ValueError, match="does not hold"):
            engine.pack_affine(engine.make_matrix(*form, 1, 64), 4, 0, levels, halves, halves)
    for form in (("q4", "wide"), ("q8", "two")):
        with pytest.raises(ValueError, match="only rows of MLX"):
            engine.pack_rows(
                engine.make_matrix(*form, 1, 64), "Q4_0", 0, np.zeros((1, 36), np.uint8)
            )
    with pytest.raises(ValueError, match="whole groups"):
        engine.make_matrix("q4", "wide", 1, 96)
