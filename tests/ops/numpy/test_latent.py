"""Latent attention against its plain form, and every row by itself."""

import numpy as np
import pytest
from numpy.typing import NDArray

from headlong.arrays import FloatArray
from headlong.ops.blocks import LatentAttention, Linear, Norm
from headlong.ops.numpy.ops import NumpyOps
from native_parts import Parts, attend_in_cuts, random, random_cuts

Wide = NDArray[np.float64]

OPS = NumpyOps()
PARTS = Parts(OPS, "F32")


def plain_form(x: FloatArray, block: LatentAttention) -> FloatArray:
    """Compute it with keys and values of every head, as it was trained, in float64."""
    wide = x.astype(np.float64)

    def norm(rows: Wide, by: Norm) -> Wide:
        return np.asarray(rows / np.sqrt((rows**2).mean(-1, keepdims=True) + by.eps) * by.weight)

    def project(rows: Wide, by: Linear) -> Wide:
        return np.asarray(rows @ by.weight.values.T.astype(np.float64))

    def rotate(rows: Wide) -> Wide:
        half = rows.shape[-1] // 2
        pairs = rows[..., :half] + 1j * rows[..., half:]
        angles = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1)) * block.rope.frequencies
        turned = block.rope.amplitude * pairs * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    normed = norm(wide, block.norm)
    low = normed
    if block.query_down is not None and block.query_norm is not None:
        low = norm(project(normed, block.query_down), block.query_norm)
    query = project(low, block.query).reshape(len(x), block.num_heads, -1)
    kept = project(normed, block.latent)
    latent, shared = norm(kept[:, : block.rank], block.latent_norm), rotate(kept[:, block.rank :])
    key_up = block.key_up.weight.values.reshape(block.num_heads, block.rank, -1)
    value_up = block.value_up.weight.values.reshape(block.num_heads, -1, block.rank)
    keys = np.einsum("nr,hrd->nhd", latent, key_up)  # (N, heads, plain_dim)
    values = np.einsum("nr,hvr->nhv", latent, value_up)
    turned = rotate(query[..., block.plain_dim :])
    result = np.zeros((len(x), block.num_heads, block.value_dim))
    for row in range(len(x)):
        seen = slice(0, row + 1)
        scores = np.einsum("hd,nhd->hn", query[row, :, : block.plain_dim], keys[seen])
        scores = (scores + turned[row] @ shared[seen].T) * block.scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        result[row] = np.einsum("hn,nhv->hv", weights, values[seen])
    return np.asarray(wide + project(result.reshape(len(x), -1), block.output), dtype=np.float32)


@pytest.mark.parametrize("is_low", [True, False])
def test_it_equals_its_plain_form(is_low: bool) -> None:
    block, x = PARTS.latent_attention(is_low=is_low), random(1, 21, 64)
    found = attend_in_cuts(OPS, block, x, [21])
    np.testing.assert_allclose(found, plain_form(x, block), rtol=2e-5, atol=2e-5)


def test_it_is_the_same_however_rows_are_cut() -> None:
    block, x = PARTS.latent_attention(), random(2, 75, 64)
    whole = attend_in_cuts(OPS, block, x, [75])
    rng = np.random.default_rng(3)
    for _ in range(4):
        assert np.array_equal(attend_in_cuts(OPS, block, x, random_cuts(rng, 75)), whole)


def test_a_position_keeps_one_key_and_one_value_for_all_heads() -> None:
    layer = OPS.make_state(PARTS.latent_attention(rank=64))
    assert getattr(layer, "bytes_per_position", 0) == (64 + 16 + 64) * 4
