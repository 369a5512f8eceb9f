"""The oracle backend against formulas written out, and its batch invariance in bytes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headlong.arrays import FloatArray
from headlong.models.rope import make_rope
from headlong.ops.blocks import Attention, GatedMlp, Linear, Norm
from headlong.ops.numpy import weights as numpy_weights
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.numpy.weights import NumpyKVLayer, NumpyMatrix
from headlong.ops.op_set import Rows, Span
from headlong.weights.tensors import StoredTensor

H, HEADS, KV_HEADS, D = 48, 6, 2, 8
OPS = NumpyOps()


def random(seed: int, *shape: int) -> FloatArray:
    """Return reproducible normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def linear(seed: int, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
    """Return a random projection that keeps magnitudes."""
    weight = NumpyMatrix(random(seed, outputs, inputs) / np.float32(inputs**0.5))
    return Linear(weight, random(seed + 1, outputs) if bias else None)


def norm(seed: int, size: int = H) -> Norm:
    """Return a random norm."""
    return Norm(np.float32(1) + random(seed, size) / np.float32(10), 1e-5)


def attention_block(*, inputs: int = H) -> Attention:
    """Return a random attention block with biases and grouped heads."""
    return Attention(
        norm=norm(1),
        query=linear(2, HEADS * D, inputs, bias=True),
        key=linear(4, KV_HEADS * D, inputs, bias=True),
        value=linear(6, KV_HEADS * D, inputs, bias=True),
        output=linear(8, H, HEADS * D),
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=D,
        rope=make_rope(D, 10_000.0),
        scale=D**-0.5,
    )


def run_attention(x: FloatArray, block: Attention, cuts: Sequence[int]) -> FloatArray:
    """Run the rows of one sequence through attention in spans of the given sizes."""
    layer = NumpyKVLayer(KV_HEADS, D, D)
    layer.reserve(len(x))
    parts, start = [], 0
    for size in cuts:
        rows = Rows(np.zeros(size, dtype=np.int64), (Span(0, size, start),))
        parts.append(OPS.mix(x[start : start + size], block, [layer], rows))
        start += size
    return np.concatenate(parts)


def attention_formula(x: FloatArray, block: Attention) -> FloatArray:
    """Compute attention over a whole sequence straight from its definition, in float64."""
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + block.norm.eps) * block.norm.weight

    def project(p: Linear, heads: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
        assert p.bias is not None
        weight = np.asarray(p.weight.values, dtype=np.float64)
        return np.asarray(normed @ weight.T + p.bias).reshape(len(x), heads, D)

    def rotate(
        heads: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    ) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
        pairs = heads[..., : D // 2] + 1j * heads[..., D // 2 :]
        turned = pairs * np.exp(1j * np.arange(len(x))[:, None, None] * block.rope.frequencies)
        turned *= block.rope.amplitude
        return np.concatenate([turned.real, turned.imag], axis=-1)

    query, key = rotate(project(block.query, HEADS)), rotate(project(block.key, KV_HEADS))
    value = project(block.value, KV_HEADS)
    result = np.zeros((len(x), HEADS, D))
    for p in range(len(x)):
        first = 0 if block.window is None else max(0, p + 1 - block.window)
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = key[first : p + 1, group] @ query[p, head] * block.scale
            weights = np.exp(scores - scores.max())
            result[p, head] = weights @ value[first : p + 1, group] / weights.sum()
    flat = result.reshape(len(x), -1) @ block.output.weight.values.T.astype(np.float64)
    return np.asarray(wide + flat, dtype=np.float32)


@pytest.mark.parametrize(("window", "amplitude"), [(None, 1.0), (5, 1.0), (None, 1.3)])
def test_attention_equals_its_formula(window: int | None, amplitude: float) -> None:
    plain = attention_block()
    block = replace(plain, window=window, rope=replace(plain.rope, amplitude=amplitude))
    x = random(20, 13, H)
    np.testing.assert_allclose(
        run_attention(x, block, [13]), attention_formula(x, block), rtol=2e-5, atol=2e-5
    )


def test_attention_is_the_same_however_rows_are_cut() -> None:
    block, x = attention_block(), random(21, 37, H)
    whole = run_attention(x, block, [37])
    rng = np.random.default_rng(3)
    for _ in range(8):
        cuts: list[int] = []
        while sum(cuts) < 37:
            cuts.append(min(int(rng.integers(1, 12)), 37 - sum(cuts)))
        assert run_attention(x, block, cuts).tobytes() == whole.tobytes(), cuts


def test_sequences_side_by_side_do_not_touch() -> None:
    block, x, y = attention_block(), random(22, 9, H), random(23, 5, H)
    layers = [NumpyKVLayer(KV_HEADS, D, D), NumpyKVLayer(KV_HEADS, D, D)]
    for layer in layers:
        layer.reserve(16)
    rows = Rows(np.zeros(14, dtype=np.int64), (Span(0, 9, 0), Span(9, 5, 0)))
    both = OPS.mix(np.concatenate([x, y]), block, layers, rows)
    assert both[:9].tobytes() == run_attention(x, block, [9]).tobytes()
    assert both[9:].tobytes() == run_attention(y, block, [5]).tobytes()


def test_beside_input_stands_first_in_what_queries_read() -> None:
    block = replace(attention_block(inputs=2 * H), beside_norm=norm(30))
    x, beside = random(31, 4, H), random(32, 4, H)
    assert block.beside_norm is not None
    layer = NumpyKVLayer(KV_HEADS, D, D)
    layer.reserve(4)
    rows = Rows(np.zeros(4, dtype=np.int64), (Span(0, 4, 0),))
    result = OPS.mix(x, block, [layer], rows, beside=beside)
    joined = np.concatenate([OPS.norm(beside, block.beside_norm), OPS.norm(x, block.norm)], axis=-1)
    value = OPS.project(joined, block.value)
    # Position 0 sees only itself, so what it attends to is its own value.
    first = np.repeat(value[0].reshape(KV_HEADS, D), HEADS // KV_HEADS, axis=0).reshape(1, -1)
    np.testing.assert_allclose(result[:1], x[:1] + OPS.project(first, block.output), rtol=1e-5)


@pytest.mark.parametrize("shape", [(48, 48), (96, 64), (192, 576), (1536, 96), (96, 1536), (7, 5)])
def test_a_row_never_feels_its_mates(shape: tuple[int, int]) -> None:
    matrix = NumpyMatrix(random(40, *shape))
    x = random(41, 29, shape[1])
    whole = matrix.times(x)
    rng = np.random.default_rng(4)
    for num_rows in (1, 2, 3, 7, 8, 9, 20):
        chosen = rng.permutation(29)[:num_rows]
        assert matrix.times(x[chosen]).tobytes() == whole[chosen].tobytes()


def test_blas_that_mixes_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the silent failure where a BLAS kernel depends on the row's place in the tile."""

    def careless(x: FloatArray) -> bool:
        return False

    monkeypatch.setattr(numpy_weights, "_is_batch_invariant", careless)
    matrix = NumpyMatrix(random(42, 32, 16))
    assert matrix.tile == 1
    np.testing.assert_allclose(
        matrix.times(random(43, 3, 16)),
        random(43, 3, 16) @ random(42, 32, 16).T,
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_mlp_equals_its_formula(activation: str) -> None:
    block = GatedMlp(norm(50), linear(51, 64, H), linear(52, 64, H), linear(53, H, 64))
    if activation == "gelu_tanh":
        block = replace(block, activation="gelu_tanh", output_norm=norm(54))
    x = random(55, 5, H)
    normed = OPS.norm(x, block.norm).astype(np.float64)
    assert block.gate is not None
    gate = normed @ block.gate.weight.values.T
    if activation == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    result = (gate * (normed @ block.up.weight.values.T)) @ block.down.weight.values.T
    if block.output_norm is not None:
        result = OPS.norm(result.astype(np.float32), block.output_norm)
    np.testing.assert_allclose(OPS.transform(x, block), x + result, rtol=1e-4, atol=1e-5)


def test_residual_silu_adds_to_its_input() -> None:
    block, x = linear(60, H, H, bias=True), random(61, 3, H)
    inner = OPS.project(x, block)
    expected = x + inner / (1 + np.exp(-inner))
    np.testing.assert_allclose(OPS.residual_silu(x, block), expected, rtol=1e-6)


def test_embedding_rows_are_scaled() -> None:
    values = random(70, 10, 4)
    stored = StoredTensor(
        "token_embd.weight", (10, 4), GGMLQuantizationType.F32, values.view(np.uint8)
    )
    found = OPS.embed(OPS.matrix(stored), np.array([3, 3, 9]), scale=2.0)
    assert np.array_equal(found, 2 * values[[3, 3, 9]])


@pytest.mark.parametrize("broken", [3e38, np.inf, np.nan])
def test_damaged_weights_are_packed_without_a_warning(broken: float) -> None:
    """Packing only looks whether rows stay apart; what the numbers are shows when they are used."""
    values = random(50, 32, 16)
    values[3] = broken
    assert NumpyMatrix(values).tile == NumpyMatrix(random(50, 32, 16)).tile
