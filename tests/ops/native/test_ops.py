"""The native backend against the numpy oracle, and its refusal of malformed input."""

from dataclasses import replace

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops import _native
from headlong.ops.blocks import Layer, Linear
from headlong.ops.native.ops import NativeOps
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Rows, Span
from native_parts import (
    EXACT_TYPES,
    INSTRUCTION_SETS,
    Parts,
    attend_in_cuts,
    native_ops,
    one_span,
    random,
    random_matrix,
)

FLOAT_TYPES = ("F16", "BF16", "F32")


def relative_error(got: FloatArray, expected: FloatArray) -> float:
    """Return the distance of two arrays as a share of the second's length."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def tolerance(type_name: str) -> float:
    """Return the relative error a projection may have.

    Float formats differ by the order of sums alone. Quantised ones also round activations to 8 bits
    per group of 32: a step of max / 127, so an error of about 0.29 steps, which for normal numbers
    (max ≈ 2.1 deviations) is 0.5 % of the result.
    """
    return 1e-5 if type_name in FLOAT_TYPES else 0.01


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", EXACT_TYPES)
@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_projection_is_near_the_oracle(instruction_set: str, type_name: str, num_rows: int) -> None:
    tensor, bias = random_matrix(type_name, 1, 83, 160), random(2, 83)
    x = random(3, num_rows, tensor.shape[1])
    ops, oracle = native_ops(instruction_set), NumpyOps()
    got = ops.project(x, Linear(ops.matrix(tensor), bias))
    expected = oracle.project(x, Linear(oracle.matrix(tensor), bias))
    assert relative_error(got, expected) < tolerance(type_name)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("window", [None, 30])
def test_attention_is_near_the_oracle(
    instruction_set: str, type_name: str, is_beside: bool, window: int | None
) -> None:
    x = random(1, 150, 64)
    beside = random(2, 150, 64) if is_beside else None
    results = []
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = Parts(ops, type_name).attention(is_beside=is_beside, window=window)
        results.append(attend_in_cuts(ops, block, x, [100, 1, 4, 45], beside) - x)
    # Queries, keys, values and weights are rounded to 16 bits of a vector's length.
    assert relative_error(*results) < (2e-4 if type_name == "F32" else 0.03)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_attention_is_precise_where_some_numbers_are_huge(instruction_set: str) -> None:
    """Some models have keys with one enormous dimension, and tokens with hardly any value."""
    x = random(1, 150, 64) * np.where(np.arange(150) % 7 == 0, 1e-3, 1.0)[:, None]
    results = []
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = Parts(ops, "F32").attention()
        biased = replace(block.key, bias=np.where(np.arange(64) % 32 == 5, 80.0, 0.0))
        block = replace(block, norm=replace(block.norm, eps=1.0), key=biased)
        results.append(attend_in_cuts(ops, block, x, [100, 1, 4, 45]) - x)
    assert relative_error(*results) < 1e-3


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_a_broken_position_shows_in_rows_that_see_it_and_is_gone_once_overwritten(
    instruction_set: str,
) -> None:
    ops = native_ops(instruction_set)
    block, cache = Parts(ops, "F32").attention(), ops.engine.make_kv_layer(2, 32, 32)
    cache.reserve(80)
    x = random(1, 80, 64)
    broken = x.copy()
    broken[70] = np.nan
    got = ops.mix(broken, block, [cache], one_span(80))
    assert np.isfinite(got[:70]).all()
    assert np.isnan(got[70:]).all()
    rest = Rows(np.zeros(4, dtype=np.int64), (Span(0, 4, 68),))
    again = ops.mix(x[68:72], block, [cache], rest)
    assert np.isfinite(again).all(), "rows see nothing that lies behind them, broken or not"


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("head_dim", [6, 48, 80])
def test_heads_of_any_even_size_work(instruction_set: str, head_dim: int) -> None:
    x = random(1, 70, 64)
    results = []
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = Parts(ops, "F32", head_dim=head_dim).attention()
        results.append(attend_in_cuts(ops, block, x, [66, 4]) - x)
    assert relative_error(*results) < 2e-3


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("is_gelu", [False, True])
@pytest.mark.parametrize(("type_name", "inner"), [("F32", 83), ("F32", 160), ("Q4_1", 160)])
def test_mlp_is_near_the_oracle(
    instruction_set: str, is_gelu: bool, type_name: str, inner: int
) -> None:
    x = random(1, 5, 64)
    results = []
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = Parts(ops, type_name).mlp(inner=inner, is_gelu=is_gelu)
        results.append(ops.transform(x, block) - x)
    assert relative_error(*results) < (1e-4 if type_name == "F32" else 0.03)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_norm_and_residual_block_are_near_the_oracle(instruction_set: str) -> None:
    x = random(1, 3, 50)
    ops, oracle = native_ops(instruction_set), NumpyOps()
    norm = Parts(ops, "F32").norm(2, 50)
    assert np.allclose(ops.norm(x, norm), oracle.norm(x, norm), rtol=1e-5, atol=1e-6)
    linears = [Parts(one, "F32").linear(3, 50, 50) for one in (ops, oracle)]
    got, expected = ops.residual_silu(x, linears[0]), oracle.residual_silu(x, linears[1])
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_stack_is_its_blocks_one_after_the_other() -> None:
    ops = native_ops("auto")
    parts = Parts(ops, "Q8_0")
    layers = tuple(Layer(parts.attention(), parts.mlp()) for _ in range(3))
    x, rows = random(1, 5, 64), one_span(5)
    caches = [[ops.engine.make_kv_layer(2, 32, 32) for _ in layers] for _ in range(2)]
    for cache_layer in (*caches[0], *caches[1]):
        cache_layer.reserve(5)
    got, taps = ops.run_layers(x, layers, caches[:1], rows, (2, 1))
    inputs = []
    for layer, cache in zip(layers, caches[1], strict=True):
        inputs.append(x)
        x = ops.transform(ops.mix(x, layer.attention, [cache], rows), layer.mlp)
    assert np.array_equal(got, x)
    assert taps is not None
    assert np.array_equal(taps, np.concatenate([inputs[2], inputs[1]], axis=-1))


def test_layers_that_grow_together_keep_what_they_hold() -> None:
    """They share rooms of some megabytes: here three, one layer of which is large enough before."""
    ops = native_ops("auto")
    parts, x = Parts(ops, "Q8_0"), random(1, 7, 64)
    layers = tuple(Layer(parts.attention(), parts.mlp()) for _ in range(20))
    caches = [[ops.engine.make_kv_layer(2, 32, 32) for _ in layers] for _ in range(2)]
    for one in caches:
        one[0].reserve(5, one[1:])
    caches[0][3].reserve(8_000)
    for one, capacity in zip(caches, (7_000, 5), strict=True):
        ops.run_layers(x[:5], layers, [one], one_span(5), ())
        one[0].reserve(capacity, one[1:])
        one[0].reserve(max(capacity, 7), one[1:])
    assert caches[0][0].num_bytes > 1_000_000
    rest = Rows(np.zeros(2, dtype=np.int64), (Span(0, 2, 5),))
    got, expected = (ops.run_layers(x[5:], layers, [one], rest, ())[0] for one in caches)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_caches_do_not_feel_who_had_their_room_before(instruction_set: str) -> None:
    """Rooms of caches that went are used again as they are, here full of broken numbers."""
    ops = native_ops(instruction_set)
    block, x = Parts(ops, "Q8_0", head_dim=48).attention(), random(1, 75, 64)
    results = []
    for _ in range(2):
        cache = ops.engine.make_kv_layer(2, 48, 48)
        cache.reserve(128)
        results.append(ops.mix(x, block, [cache], one_span(75)).tobytes())
        ops.mix(np.full((128, 64), np.nan, np.float32), block, [cache], one_span(128))
        del cache
    assert results[0] == results[1]


def test_blocks_go_when_their_specs_go() -> None:
    """One model sees many heads in a session; each one's weights once stayed for good."""
    ops = native_ops("auto")
    parts, x = Parts(ops, "Q8_0"), random(1, 2, 64)
    kept = parts.mlp()
    ops.transform(x, kept)
    num_kept = len(ops._blocks._translated)
    for _ in range(3):
        layer, cache = Layer(parts.attention(), parts.mlp()), ops.engine.make_kv_layer(2, 32, 32)
        cache.reserve(2)
        ops.run_last(x, layer, [cache], one_span(2))
        assert len(ops._blocks._translated) > num_kept
        del layer
        assert len(ops._blocks._translated) == num_kept
    ops.transform(x, kept)


def test_broken_activations_stay_visible() -> None:
    """A NaN must reach the logits, where the sampler reports it; 8 bits cannot carry one."""
    ops = native_ops("auto")
    linear = Parts(ops, "Q8_0").linear(1, 20, 64)
    x = random(2, 2, 64)
    x[1, 40] = np.nan
    y = ops.project(x, linear)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()


def test_results_are_nobody_else_s_while_they_live() -> None:
    """Large results come out of memory that was used before, but never of memory in use."""
    ops = native_ops("auto")
    linear = Parts(ops, "Q8_0").linear(1, 20_000, 64)
    inputs = [random(seed, 1, 64) for seed in range(4)]
    kept = [ops.project(x, linear) for x in inputs]
    copies = [y.copy() for y in kept]
    place = kept[3].ctypes.data
    del kept[3]
    again = ops.project(inputs[0], linear)
    assert again.ctypes.data == place
    for y, copy in zip([*kept, again], [*copies[:3], copies[0]], strict=True):
        assert y.tobytes() == copy.tobytes()


class TestMalformedInput:
    """Whatever does not fit is a Python error, never the kernel's problem."""

    ops = NativeOps(1, "portable")
    parts = Parts(ops, "F32")

    def test_rows_of_another_width(self) -> None:
        with pytest.raises(ValueError, match="rows do not fit"):
            self.ops.project(random(1, 2, 63), self.parts.linear(1, 8, 64))
        with pytest.raises(ValueError, match="rows do not fit"):
            self.ops.transform(random(1, 2, 63), self.parts.mlp())
        with pytest.raises(ValueError, match="rows do not fit"):
            self.ops.norm(random(1, 2, 63), self.parts.norm(1))

    def test_arrays_of_other_kinds(self) -> None:
        linear = self.parts.linear(1, 8, 64)
        with pytest.raises(TypeError):
            self.ops.project(random(1, 64), linear)
        with pytest.raises(TypeError):
            self.ops.engine.project(random(1, 2, 64), self.ops._blocks.linear(linear), None)  # type: ignore[arg-type]  # on purpose

    def test_token_ids_outside_the_table(self) -> None:
        matrix = self.parts.linear(1, 8, 64).weight
        for bad in (-1, 8):
            with pytest.raises(ValueError, match="outside the embedding table"):
                self.ops.embed(matrix, np.array([0, bad]))

    def test_caches_without_room_or_of_other_heads(self) -> None:
        block, x = self.parts.attention(), random(1, 3, 64)
        small = self.ops.engine.make_kv_layer(2, 32, 32)
        with pytest.raises(ValueError, match="no room"):
            self.ops.mix(x, block, [small], one_span(3))
        for sizes in ((3, 32, 32), (2, 16, 32), (2, 32, 16)):
            other = self.ops.engine.make_kv_layer(*sizes)
            other.reserve(64)
            with pytest.raises(ValueError, match="other heads"):
                self.ops.mix(x, block, [other], one_span(3))
        with pytest.raises(ValueError, match="one cache per span"):
            self.ops.mix(x, block, [], one_span(3))

    @pytest.mark.parametrize(
        "spans",
        [
            (Span(0, 2, 0),),
            (Span(0, 4, 0),),
            (Span(1, 3, 0),),
            (Span(0, 0, 0), Span(0, 3, 0)),
            (Span(0, 3, -1),),
            (Span(0, 3, 2**40),),
        ],
    )
    def test_spans_that_do_not_cover_the_rows(self, spans: tuple[Span, ...]) -> None:
        layers = [self.ops.engine.make_kv_layer(2, 32, 32) for _ in spans]
        for layer in layers:
            layer.reserve(64)
        rows = Rows(np.zeros(3, dtype=np.int64), spans)
        with pytest.raises(ValueError, match=r"spans|position"):
            self.ops.mix(random(1, 3, 64), self.parts.attention(), layers, rows)

    def test_last_rows_of_what_is_no_layer_or_has_no_room(self) -> None:
        engine, x = self.ops.engine, random(1, 3, 64)
        layer = Layer(self.parts.attention(), self.parts.mlp())
        whole = self.ops._blocks._stack([layer])
        cache = self.ops.engine.make_kv_layer(2, 32, 32)
        cache.reserve(64)
        y = np.empty((1, 64), dtype=np.float32)
        engine.run_last(whole, x, [(0, 3, 0)], [[cache]], None, y)
        with pytest.raises(ValueError, match="buffer for last rows"):
            engine.run_last(whole, x, [(0, 3, 0)], [[cache]], None, x)
        with pytest.raises(ValueError, match="not read"):
            engine.run_last(whole, x, [(0, 3, 0)], [[cache]], x, y)
        mlp_only = _native.Stack([(None, self.ops._blocks._mlp(layer.mlp), None, 1.0)])
        with pytest.raises(ValueError, match="one layer with a mixer"):
            engine.run_last(mlp_only, x, [(0, 3, 0)], [[cache]], None, y)
        two = self.ops._blocks._stack([layer, layer])
        with pytest.raises(ValueError, match="one layer with a mixer"):
            engine.run_last(two, x, [(0, 3, 0)], [[cache, cache]], None, y)

    def test_taps_of_a_layer_without_attention(self) -> None:
        """It once read the size of the rows from an attention block that was not there."""
        x, taps = random(1, 3, 64), np.empty((3, 64), dtype=np.float32)
        stack = _native.Stack([(None, self.ops._blocks._mlp(self.parts.mlp()), None, 1.0)])
        before = x.copy()
        self.ops.engine.run(stack, x, [(0, 3, 0)], [[None]], [0], taps, None)
        assert np.array_equal(taps, before)

    def test_two_spans_on_one_cache(self) -> None:
        layer = self.ops.engine.make_kv_layer(2, 32, 32)
        layer.reserve(64)
        rows = Rows(np.zeros(2, dtype=np.int64), (Span(0, 1, 0), Span(1, 1, 0)))
        with pytest.raises(ValueError, match="same cache"):
            self.ops.mix(random(1, 2, 64), self.parts.attention(), [layer, layer], rows)

    def test_blocks_that_do_not_fit_together(self) -> None:
        wide = Parts(self.ops, "F32", num_heads=5)
        layer = self.ops.engine.make_kv_layer(2, 32, 32)
        layer.reserve(64)
        with pytest.raises(ValueError, match="evenly"):
            self.ops.mix(random(1, 1, 64), wide.attention(), [layer], one_span(1))
