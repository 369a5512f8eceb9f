"""Latent attention in the native backend: near the oracle, and every bit a row's own."""

from dataclasses import replace

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.blocks import Layer
from headlong.ops.layer_state import KVLayer
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Ops, Rows, Span
from native_parts import (
    INSTRUCTION_SETS,
    Parts,
    attend_in_cuts,
    kv_layer,
    native_ops,
    one_span,
    random,
    random_cuts,
)

HELD = (130, 64, 0, 7, 700)
"""Positions that each sequence has before the pass."""
SIZES = (1, 5, 80, 17, 2)


def relative_error(found: FloatArray, expected: FloatArray) -> float:
    """Return the distance against the length of what is expected."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("is_low", [False, True])
@pytest.mark.parametrize(
    ("type_name", "sizes", "bound"),
    [
        ("F32", {}, 1e-3),
        ("F32", {"rank": 22, "plain_dim": 7, "value_dim": 5}, 1e-3),
        ("BF16", {}, 1e-3),
        ("Q8_0", {}, 0.03),
        ("Q8_0", {"rank": 96, "value_dim": 16}, 0.03),
        ("Q4_1", {"plain_dim": 64, "value_dim": 32}, 0.03),
    ],
)
def test_it_is_near_the_oracle(
    instruction_set: str, is_low: bool, type_name: str, sizes: dict[str, int], bound: float
) -> None:
    """Sizes that fill neither tiles nor groups, and those that do; queries of low rank or not."""
    x, results = random(1, 70, 64), []
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = Parts(ops, type_name).latent_attention(is_low=is_low, **sizes)
        results.append(attend_in_cuts(ops, block, x, [66, 4]) - x)
    assert relative_error(*results) < bound


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(("type_name", "num_heads"), [("Q8_0", 6), ("F32", 5), ("Q4_1", 40)])
def test_it_does_not_know_its_chunks(instruction_set: str, type_name: str, num_heads: int) -> None:
    """Forty heads that share a key are more than an item of few rows takes."""
    rng = np.random.default_rng(4)
    x = random(5, 210, 64)
    whole = None
    for threads in (1, 2, 3):
        ops = native_ops(instruction_set, threads)
        block = Parts(ops, type_name, num_heads=num_heads).latent_attention()
        for cuts in ([len(x)], [1] * len(x), random_cuts(rng, len(x)), random_cuts(rng, len(x))):
            result = attend_in_cuts(ops, block, x, cuts).tobytes()
            whole = whole or result
            assert result == whole, (threads, cuts)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_sequences_do_not_know_each_other(instruction_set: str) -> None:
    """Decode rows, a draft to verify and a long prompt in one pass, in any order, for any team."""
    rng = np.random.default_rng(6)

    def run(order: tuple[int, ...], threads: int = 2) -> dict[int, bytes]:
        ops = native_ops(instruction_set, threads)
        block = Parts(ops, "Q8_0", num_heads=40).latent_attention()
        states, spans, chunks, row = [], [], [], 0
        for s in order:
            states.append(state := kv_layer(ops, block))
            state.reserve(HELD[s] + SIZES[s])
            if HELD[s]:
                ops.mix(random(10 + s, HELD[s], 64), block, [state], one_span(HELD[s]))
            spans.append(Span(row, SIZES[s], HELD[s]))
            chunks.append(random(20 + s, SIZES[s], 64))
            row += SIZES[s]
        rows = Rows(np.zeros(row, dtype=np.int64), tuple(spans))
        y = ops.mix(np.concatenate(chunks), block, states, rows)
        return {
            s: y[span.first_row : span.first_row + span.num_rows].tobytes()
            for s, span in zip(order, spans, strict=True)
        }

    alone = {s: run((s,))[s] for s in range(5)}
    for threads in (1, 2, 3, 5):
        assert run(tuple(int(s) for s in rng.permutation(5)), threads) == alone, threads


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_last_rows_and_caches_are_those_of_a_whole_pass(instruction_set: str) -> None:
    ops = native_ops(instruction_set)
    parts = Parts(ops, "Q8_0")
    layer, x = Layer(parts.latent_attention(), parts.mlp()), random(1, 20, 64)
    rows = Rows(np.zeros(20, dtype=np.int64), (Span(0, 13, 0), Span(13, 7, 0)))

    def states() -> list[KVLayer]:
        assert layer.mixer is not None
        made = [kv_layer(ops, layer.mixer) for _ in rows.spans]
        for state in made:
            state.reserve(16)
        return made

    ours, theirs = states(), states()
    last = ops.run_last(x, layer, ours, rows)
    whole, _ = ops.run_layers(x, (layer,), [[state] for state in theirs], rows)
    assert np.array_equal(last, whole[[12, 19]])
    further = Rows(np.zeros(4, dtype=np.int64), (Span(0, 2, 13), Span(2, 2, 7)))
    assert layer.mixer is not None
    found, expected = (ops.mix(x[:4], layer.mixer, held, further) for held in (ours, theirs))
    assert np.array_equal(found, expected)


class TestRefusals:
    """What would read or write where it must not is refused with a ValueError."""

    ops = native_ops("auto")
    parts = Parts(ops, "F32")
    block = parts.latent_attention()

    def mix(self, **wrong: object) -> None:
        """Run one row through the block with some parts of it replaced."""
        state = kv_layer(self.ops, self.block)
        state.reserve(64)
        self.ops.mix(random(1, 1, 64), replace(self.block, **wrong), [state], one_span(1))  # type: ignore[arg-type]

    def test_caches_without_room_or_of_other_widths(self) -> None:
        x = random(1, 3, 64)
        with pytest.raises(ValueError, match="no room"):
            self.ops.mix(x, self.block, [kv_layer(self.ops, self.block)], one_span(3))
        other = self.ops.engine.make_kv_layer(1, 80, 80)
        other.reserve(64)
        with pytest.raises(ValueError, match="other heads"):
            self.ops.mix(x, self.block, [other], one_span(3))

    def test_matrices_of_other_sizes(self) -> None:
        for part in ("query", "latent", "key_up", "value_up", "output", "query_down"):
            with pytest.raises(ValueError, match=r"has the shape|does not fit"):
                self.mix(**{part: self.parts.linear(1, 24, 24)})

    def test_sizes_that_are_odd_or_missing(self) -> None:
        with pytest.raises(ValueError, match="must be even"):
            self.mix(latent_norm=self.parts.norm(1, 63))
        with pytest.raises(ValueError, match="low rank need"):
            self.mix(query_norm=None)
        with pytest.raises(ValueError, match="sizes above 0"):
            self.mix(num_heads=0)


def test_broken_rows_break_no_other_sequence() -> None:
    ops = native_ops("auto")
    block = Parts(ops, "Q8_0").latent_attention()

    def run(ops: Ops, first: FloatArray) -> FloatArray:
        states = [kv_layer(ops, block) for _ in range(2)]
        for state in states:
            state.reserve(4)
        rows = Rows(np.zeros(8, dtype=np.int64), (Span(0, 4, 0), Span(4, 4, 0)))
        x = np.concatenate([first, random(2, 4, 64)])
        y: FloatArray = ops.mix(x, block, states, rows)
        return y

    broken = run(ops, np.full((4, 64), np.nan, np.float32))
    assert np.isnan(broken[:4]).all()
    assert np.array_equal(broken[4:], run(ops, random(3, 4, 64))[4:])
