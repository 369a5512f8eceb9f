"""Levels of 4 and 8 bits as the GPU's kernels read them, against the numbers of the file."""

import numpy as np
import pytest

from headlong.weights.tensors import StoredTensor
from native_parts import NESTED_TYPES, random, random_matrix, stored

torch = pytest.importorskip("torch")
from headlong.ops.blocks import Linear  # noqa: E402  # both need torch
from headlong.ops.cuda.ops import CudaOps  # noqa: E402
from headlong.ops.cuda.packed_matrix import PackedMatrix  # noqa: E402
from headlong.ops.torch.weights import TorchMatrix  # noqa: E402

CPU = torch.device("cpu")
EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def matrix_of(type_name: str, outputs: int = 24) -> StoredTensor:
    """Return a random matrix of one stored type."""
    return random_matrix(type_name, 1, outputs, 128)


@pytest.mark.parametrize("type_name", EXACT)
def test_levels_give_the_numbers_of_the_file(type_name: str) -> None:
    tensor = matrix_of(type_name)
    packed = CudaOps(CPU).matrix(tensor)
    assert isinstance(packed, PackedMatrix)
    np.testing.assert_array_equal(packed.values.numpy(), tensor.to_float32())


@pytest.mark.parametrize("type_name", NESTED_TYPES)
def test_nested_scales_lose_less_than_bfloat16(type_name: str) -> None:
    tensor = matrix_of(type_name)
    packed = CudaOps(CPU).matrix(tensor)
    assert isinstance(packed, PackedMatrix)
    wanted = tensor.to_float32()
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(packed.values.numpy(), wanted, rtol=0, atol=2**-10 * largest)


def test_asked_formats_round_as_the_oracle_does() -> None:
    tensor = stored("F32", random(2, 16, 192))
    ops = CudaOps(CPU)
    for quant, type_name in (("q4", "Q4_1"), ("q8", "Q8_0")):
        wanted = stored(type_name, tensor.to_float32()).to_float32()
        np.testing.assert_array_equal(ops.matrix(tensor, quant).values.numpy(), wanted)
        assert ops.matrix_format(tensor, quant).startswith(quant)
        assert ops.matrix_bytes(tensor, quant) == ops.matrix(tensor, quant).num_bytes


def test_rows_without_whole_chunks_are_kept_in_floats() -> None:
    ops = CudaOps(CPU)
    tensor = stored("Q8_0", random(3, 8, 96))
    assert isinstance(ops.matrix(tensor), TorchMatrix)
    assert ops.matrix_format(tensor) == "f32"
    assert ops.matrix_bytes(tensor) == 8 * 96 * 4


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "Q6_K"])
def test_products_and_lookups_equal_those_of_floats(type_name: str) -> None:
    tensor = matrix_of(type_name)
    ops = CudaOps(CPU)
    packed = ops.matrix(tensor)
    plain = TorchMatrix(packed.values)
    x = torch.tensor(random(4, 11, tensor.shape[1]))
    assert torch.equal(ops.project(x, Linear(packed)), ops.project(x, Linear(plain)))
    ids = np.array([3, 0, 3])
    assert torch.equal(ops.embed(packed, ids, 1.5), ops.embed(plain, ids, 1.5))


def test_joined_parts_are_views_of_one_matrix() -> None:
    ops = CudaOps(CPU)
    parts = [ops.matrix(stored("Q4_1", random(seed, 16, 64))) for seed in (1, 2)]
    before = [part.values for part in parts]
    joined = PackedMatrix.join(parts)
    assert torch.equal(joined.values, torch.cat(before))
    for part, values in zip(parts, before, strict=True):
        assert torch.equal(part.values, values)
        assert (
            part.levels.untyped_storage().data_ptr() == joined.levels.untyped_storage().data_ptr()
        )


def test_neighbours_of_one_format_are_fused() -> None:
    ops = CudaOps(CPU)
    kinds = ("Q4_1", "Q4_1", "Q8_0")
    linears = [Linear(ops.matrix(stored(k, random(i, 16, 64)))) for i, k in enumerate(kinds)]
    linears[1] = Linear(linears[1].weight, random(5, 16))
    x = torch.tensor(random(6, 3, 64))
    spec = linears[0]
    wanted = torch.cat([ops.project(x, linear) for linear in linears], 1)
    torch.testing.assert_close(ops.project_fused(x, spec, *linears), wanted)
    assert [matrix.num_outputs for matrix, _ in ops.fused_runs(spec, *linears)] == [32, 16]
