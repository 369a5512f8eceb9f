"""Matrices of the MLX backend: formats, and rows that keep to themselves."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.numpy.ops import NumpyOps
from native_parts import stored

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")
from headlong.ops.mlx import ops as mlx_ops  # noqa: E402  # both need MLX
from headlong.ops.mlx import weights as mlx_weights  # noqa: E402
from headlong.ops.mlx.ops import MlxOps  # noqa: E402
from headlong.ops.mlx.weights import MlxMatrix, RowBatching  # noqa: E402


def random_rows(seed: int, *shape: int) -> FloatArray:
    """Return reproducible normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("quant", [None, "q4", "q5", "q6", "q8", "f16"])
def test_a_matrix_multiplies_as_the_oracle_does(quant: str | None) -> None:
    tensor = stored("F32", random_rows(1, 48, 96))
    ours, theirs = MlxOps().matrix(tensor, quant), NumpyOps().matrix(tensor, quant)
    x = random_rows(2, 11, 96)
    found = np.array(ours.times(mx.array(x)))
    np.testing.assert_allclose(found, theirs.times(x), rtol=2e-4, atol=1e-4)
    table = np.array(ours.rows(mx.array([3, 0, 3])))
    np.testing.assert_allclose(table, theirs.values[[3, 0, 3]], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("quant", [None, "q4", "q5", "q6", "q8"])
def test_what_it_takes_is_known_beforehand(quant: str | None) -> None:
    tensor, ops = stored("F32", random_rows(3, 48, 96)), MlxOps()
    matrix = ops.matrix(tensor, quant)
    assert ops.matrix_bytes(tensor, quant) == matrix.num_bytes
    packed = quant in ("q4", "q5", "q8")
    assert ops.matrix_format(tensor, quant) == (quant if packed else "f32")


@pytest.mark.parametrize("quant", [None, "q4"])
def test_joined_and_stacked_matrices_lie_in_memory_once(quant: str | None) -> None:
    tensors = [stored("F32", random_rows(seed, 32, 64)) for seed in (4, 5)]
    x = mx.array(random_rows(6, 3, 64))
    for put_together in (mlx_weights.join, mlx_weights.stack):
        matrices = [MlxOps().matrix(tensor, quant) for tensor in tensors]
        before = [np.array(one.times(x)) for one in matrices]
        mx.clear_cache()
        active = mx.get_active_memory()
        whole = put_together(matrices)
        after = [np.array(one.times(x)) for one in matrices]
        assert all(map(np.array_equal, before, after))
        assert whole.num_bytes == sum(one.num_bytes for one in matrices)
        assert mx.get_active_memory() - active < whole.num_bytes // 4


def refused(x: Any, *_: Any) -> Any:
    """Fail as a Metal compiler does that does not take the source."""
    raise RuntimeError("Unable to build metal library from source\n  line 7")


def unknown(x: Any, *_: Any) -> Any:
    """Fail as an MLX does that has other arguments."""
    raise TypeError("metal_kernel(): incompatible function arguments")


def wrong(x: Any, parts: tuple[Any, ...], *_: Any) -> Any:
    """Give something else than the product."""
    return mx.zeros((len(x), parts[0].shape[0]))


def mixing(x: Any, parts: tuple[Any, ...], *_: Any) -> Any:
    """Give products that depend on how many rows there are."""
    return (x @ parts[0].T) * (1 + 0.001 * len(x))


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (refused, "Unable to build metal library from source"),
        (unknown, "incompatible function arguments"),
        (wrong, "its products are not MLX's"),
        (mixing, "other bits beside others"),
    ],
)
def test_a_kernel_that_fails_is_not_used_and_the_note_says_why(
    kernel: Callable[..., Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: dict[str, str] = {}
    monkeypatch.setattr(mlx_weights, "is_on_metal", lambda: True)
    monkeypatch.setattr(mlx_weights, "multiply_rows", kernel)
    monkeypatch.setattr(mlx_weights, "kernel_problems", problems)
    monkeypatch.setattr(mlx_ops, "kernel_problems", problems)
    monkeypatch.setattr(mlx_weights, "_measured", {})
    ops, values = MlxOps(), random_rows(9, 48, 96)
    matrix = ops.matrix(stored("F32", values))
    assert not matrix.rows_at_once.uses_metal_kernel
    x = random_rows(10, 11, 96)
    np.testing.assert_allclose(np.array(matrix.times(mx.array(x))), x @ values.T, atol=1e-4)
    ops.matrix(stored("F32", values))
    assert ops.note.count("no kernel of ours for floats: ") == 1
    assert reason in ops.note
    assert "line 7" not in ops.note


class Moody(MlxMatrix):
    """A matrix whose kernels differ with the number of rows, as those of GPUs do."""

    def multiply(self, x: Any) -> Any:
        """Return something that only so many rows get."""
        return super().multiply(x) * (1 + len(x))


class Mixing(MlxMatrix):
    """A matrix whose kernels let rows affect one another, however many they are."""

    def multiply(self, x: Any) -> Any:
        """Return something that depends on all rows."""
        return super().multiply(x) + (x.sum() - x[:1].sum())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (MlxMatrix, RowBatching(8)),
        (Moody, RowBatching(8, is_padded=True)),
        (Mixing, RowBatching(1)),
    ],
)
def test_kernels_that_mix_rows_are_noticed(kind: type[MlxMatrix], expected: RowBatching) -> None:
    mlx_weights._measured.clear()
    matrix = kind([mx.array(random_rows(7, 40, 24))])
    mlx_weights._measured.clear()
    assert matrix.rows_at_once == expected
    x = mx.array(random_rows(8, 21, 24))
    whole = np.array(matrix.times(x))
    for size in (1, 2, 9):
        parts = [matrix.times(x[start : start + size]) for start in range(0, 21, size)]
        assert np.array_equal(np.array(mx.concatenate(parts)), whole)
