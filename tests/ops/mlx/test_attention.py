"""Attention on MLX: rows that keep their bits, whatever kernels the device takes for many."""

from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install 'headlong[mlx]'")
from headlong.ops.mlx import attention as mlx_attention  # noqa: E402  # both need MLX
from headlong.ops.mlx.ops import MlxOps  # noqa: E402

SIZES = [(3, 3, 64, 64), (8, 4, 128, 128), (4, 1, 64, 64), (1, 4, 256, 256), (1, 16, 576, 512)]
"""(G, heads / G, D, V) of models that people run: shared and single heads of keys, latent ones."""


def random_parts(sizes: tuple[int, int, int, int], length: int) -> tuple[Any, ...]:
    """Return queries of 24 rows, keys, values, a mask and a scale."""
    num_kv_heads, num_each, key_dim, value_dim = sizes
    shapes = (
        (24, num_kv_heads, num_each, key_dim),
        (num_kv_heads, length, key_dim),
        (num_kv_heads, length, value_dim),
    )
    dtype = MlxOps().dtype
    made = [mx.random.normal(s, key=mx.random.key(9 + i)) for i, s in enumerate(shapes)]
    hidden = mx.arange(length)[None] > length - 24 + mx.arange(24)[:, None]
    mask = mx.where(hidden, -mx.inf, 0.0)[:, None, None]
    return *(one.astype(dtype) for one in made), mask, key_dim**-0.5


def bits(x: Any) -> bytes:
    """Return the numbers of an array as they are."""
    return np.array(x.astype(mx.float32)).tobytes()


def in_pieces(parts: tuple[Any, ...], size: int) -> bytes:
    """Read the rows so many at a time."""
    query, keys, values, mask, scale = parts
    pieces = [slice(first, first + size) for first in range(0, len(query), size)]
    return bits(
        mx.concatenate(
            [mlx_attention.read_values(query[p], keys, values, mask[p], scale) for p in pieces]
        )
    )


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("length", [64, 1088])
def test_rows_of_a_stretch_get_the_bits_of_single_ones(
    sizes: tuple[int, int, int, int], length: int
) -> None:
    parts = random_parts(sizes, length)
    alone = in_pieces(parts, 1)
    for size in (2, 3, 5, 8, 24):
        assert in_pieces(parts, size) == alone, size


def test_kernels_that_differ_with_the_number_of_rows_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mix = mlx_attention._mix

    def moody(query: Any, *others: Any) -> Any:
        return mix(query, *others) * (1 + len(query))

    monkeypatch.setattr(mlx_attention, "_mix", moody)
    mlx_attention._is_batch_invariant.cache_clear()
    try:
        parts = random_parts(SIZES[0], 64)
        assert in_pieces(parts, 5) == in_pieces(parts, 1)
        assert mlx_attention._is_batch_invariant.cache_info().misses == 1
    finally:
        mlx_attention._is_batch_invariant.cache_clear()
