"""Recurrent mixers on compiled kernels: the oracle's numbers, and the same bits on every way.

However rows are cut into passes, refused, taken back, forked or batched, a row that stands must
leave and read the very same bits.
"""

import random as dice
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.cache.sequence_state import SNAPSHOT_STEP, SequenceState
from headlong.ops.native.ops import NativeOps
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Ops, Rows, Span
from native_parts import (
    INSTRUCTION_SETS,
    RECURRENT,
    Parts,
    RecurrentMixer,
    native_ops,
    one_span,
    random,
)

NUM_ROWS = 90


def make_state(ops: Ops, block: RecurrentMixer) -> SequenceState:
    """Return the state of a sequence in a model of this one layer."""
    return SequenceState([ops.make_state(block)])


def run(
    ops: Ops,
    block: RecurrentMixer,
    states: Sequence[SequenceState],
    x: Sequence[FloatArray],
    *,
    all_or_none: bool = False,
) -> list[FloatArray]:
    """Run rows of some sequences in one pass; they stay pending."""
    stops = list(accumulate(map(len, x)))
    spans = tuple(
        Span(stop - len(rows), len(rows), state.append(len(rows), all_or_none=all_or_none))
        for state, rows, stop in zip(states, x, stops, strict=True)
    )
    layers = [state.layers[0] for state in states]
    ids = np.zeros(stops[-1], dtype=np.int64)
    y = ops.mix(np.concatenate(x), block, layers, Rows(ids, spans))
    return np.split(y, stops[:-1])


def run_at_once(ops: Ops, block: RecurrentMixer, x: FloatArray) -> FloatArray:
    """Run all rows of a sequence in one pass."""
    return run(ops, block, [make_state(ops, block)], [x], all_or_none=True)[0]


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("sizes", [(24, 32), (16, 24), (7, 40), (32, 64)])
@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_results_are_those_of_the_oracle(
    kind: str, instruction_set: str, type_name: str, sizes: tuple[int, int]
) -> None:
    results = []
    x = random(1, NUM_ROWS, 64)
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = Parts(ops, type_name).recurrent(kind, key_dim=sizes[0], value_dim=sizes[1])
        results.append(run_at_once(ops, block, x) - x)
    got, expected = results
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert error < (1e-5 if type_name == "F32" else 2e-2)


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("instruction_set", [*INSTRUCTION_SETS, "numpy"])
@pytest.mark.parametrize("seed", range(6))
def test_refused_rows_and_cuts_change_no_bit(kind: str, instruction_set: str, seed: int) -> None:
    """Rows stand or fall together, are refused in part, or wait pending over several passes."""
    ops = NumpyOps() if instruction_set == "numpy" else native_ops(instruction_set)
    block = Parts(ops, "F32").recurrent(kind)
    x = random(seed, NUM_ROWS, 64)
    expected = run_at_once(ops, block, x)
    rng = dice.Random(seed)
    state, done, num_refused = make_state(ops, block), 0, 0
    while done < NUM_ROWS:
        count = min(rng.choice([1, 1, 2, 5, 17]), NUM_ROWS - done)
        if rng.random() < 0.3:
            got = run(ops, block, [state], [x[done : done + count]], all_or_none=True)[0]
            stands = rng.random() < 0.7
            state.commit(count) if stands else state.rollback()
            num_kept = count if stands else 0
        else:
            false = random(99, rng.randint(0, 6), 64)
            rows = np.concatenate([x[done : done + count], false])
            cuts = sorted(rng.sample(range(1, len(rows)), min(len(rows) - 1, rng.randint(0, 3))))
            parts = [run(ops, block, [state], [part])[0] for part in np.split(rows, cuts)]
            got, num_kept = np.concatenate(parts)[:count], rng.randint(0, count)
            state.commit(num_kept)
        assert np.array_equal(got, expected[done : done + count])
        num_refused += num_kept < count
        done += num_kept
        assert state.length == done
    assert num_refused > 3


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batches_and_threads_change_no_bit(
    kind: str, instruction_set: str, threads: int, is_far: bool
) -> None:
    alone = native_ops(instruction_set, threads=1)
    sequences = [random(seed, NUM_ROWS, 64) for seed in range(4)]
    blocks = Parts(alone, "Q8_0").recurrent(kind)
    expected = [run_at_once(alone, blocks, x) for x in sequences]
    ops = native_ops(instruction_set, threads)
    ops.engine.set_far_apart(is_far)
    block = Parts(ops, "Q8_0").recurrent(kind)
    states = [make_state(ops, block) for _ in sequences]
    rng, done = dice.Random(threads), [0] * len(states)
    while any(one < NUM_ROWS for one in done):
        picked = [i for i, one in enumerate(done) if one < NUM_ROWS and rng.random() < 0.8]
        sizes = [min(rng.choice([1, 3, 30]), NUM_ROWS - done[i]) for i in picked]
        if not picked:
            continue
        rows = [sequences[i][done[i] : done[i] + n] for i, n in zip(picked, sizes, strict=True)]
        parts = run(ops, block, [states[i] for i in picked], rows, all_or_none=rng.random() < 0.3)
        for i, size, got in zip(picked, sizes, parts, strict=True):
            assert np.array_equal(got, expected[i][done[i] : done[i] + size])
            states[i].commit(size)
            done[i] += size


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("instruction_set", [*INSTRUCTION_SETS, "numpy"])
def test_forked_states_go_on_as_their_original(kind: str, instruction_set: str) -> None:
    ops = NumpyOps() if instruction_set == "numpy" else native_ops(instruction_set)
    block = Parts(ops, "F32").recurrent(kind)
    x = random(3, NUM_ROWS, 64)
    expected = run_at_once(ops, block, x)
    state = make_state(ops, block)
    state.plan_snapshots(num_prompt=80, num_common=12)
    for first, stop in ((0, 10), (10, 70), (70, 80)):
        run(ops, block, [state], [x[first:stop]], all_or_none=True)
        state.commit(stop - first)
    run(ops, block, [state], [x[80:86]])
    state.commit(4)  # committed, and not yet in the matrices
    lengths = [state.shareable_length(length) for length in (10, 11, 63, 70, 79, 80, 84, 90)]
    assert lengths == [0, 11, 11, SNAPSHOT_STEP, 79, 79, 84, 84]
    for length in (11, SNAPSHOT_STEP, 79, 84):
        forked = state.fork(length, lambda: make_state(ops, block))
        (rest,) = run(ops, block, [forked], [x[length:]])
        assert np.array_equal(rest, expected[length:])
    for length in (84, 79, SNAPSHOT_STEP):
        state.fork_in_place(length)
        (rest,) = run(ops, block, [state], [x[length:]])
        assert np.array_equal(rest, expected[length:])
        state.rollback()
    assert state.shareable_length(70) == SNAPSHOT_STEP
    assert state.shareable_length(63) == 11


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_gated_attention_with_a_part_rotary_is_the_oracles(instruction_set: str) -> None:
    results = []
    x = random(1, 40, 64)
    for ops in (native_ops(instruction_set), NumpyOps()):
        parts = Parts(ops, "F32")
        plain = parts.attention()
        rope = replace(plain.rope, frequencies=plain.rope.frequencies[:5], amplitude=1.3)
        block = replace(plain, gate=parts.linear(50, 192, 64), rope=rope)
        state = SequenceState([ops.make_state(block)])
        state.reserve(40)
        results.append(ops.mix(x, block, state.layers, one_span(40)) - x)
    assert np.linalg.norm(results[0] - results[1]) < 1e-3 * np.linalg.norm(results[1])


class TestRefusals:
    """What would read or write where it must not is refused with a ValueError."""

    ops = NativeOps(2)
    block = Parts(ops, "F32").delta_net()

    def test_rows_the_state_was_not_told_of(self) -> None:
        state = make_state(self.ops, self.block)
        state.append(3)
        with pytest.raises(ValueError, match="not told of these rows"):
            self.ops.mix(random(1, 4, 64), self.block, state.layers, one_span(4))

    def test_state_of_another_kind_or_shape(self) -> None:
        other = self.ops.make_state(Parts(self.ops, "F32").delta_net(key_dim=8))
        kv = self.ops.make_state(Parts(self.ops, "F32").attention())
        for state in (other, kv):
            with pytest.raises(ValueError, match="another shape"):
                self.ops.mix(random(1, 1, 64), self.block, [state], one_span(1))

    def test_part_of_what_stands_together(self) -> None:
        state = self.ops.engine.make_recurrent_state((2, 4, 24, 32), 4)
        state.append(4, all_or_none=True, snapshots=[2])
        self.ops.mix(random(1, 4, 64), self.block, [state], one_span(4))
        with pytest.raises(ValueError, match="stand only together"):
            state.commit(3)
        with pytest.raises(ValueError, match="only pending ones"):
            state.append(1, all_or_none=False, snapshots=[])

    def test_snapshots_that_cannot_be(self) -> None:
        state = self.ops.engine.make_recurrent_state((2, 4, 24, 32), 4)
        for snapshots in ([0], [5], [2, 2], [-1]):
            with pytest.raises(ValueError, match="no snapshot"):
                state.append(4, all_or_none=True, snapshots=snapshots)
        with pytest.raises(ValueError, match="no snapshot"):
            state.append(4, all_or_none=False, snapshots=[2])
        with pytest.raises(ValueError, match="no such snapshot"):
            state.forget_snapshot(0)
        with pytest.raises(ValueError, match="no such snapshot"):
            state.copy_from(state, 0)

    @pytest.mark.parametrize("sizes", [(3, 4, 8, 8), (0, 4, 8, 8), (2, 4, 0, 8), (2, 4, 8, 5000)])
    def test_heads_that_cannot_be(self, sizes: tuple[int, int, int, int]) -> None:
        with pytest.raises(ValueError, match="share key heads evenly"):
            self.ops.engine.make_recurrent_state(sizes, 4)

    def test_blocks_whose_parts_do_not_fit(self) -> None:
        state = self.ops.make_state(self.block)
        for wrong in (
            replace(self.block, num_key_heads=3),
            replace(self.block, key_dim=25),
            replace(self.block, convolution=random(1, 40, 224)),
            replace(self.block, decay_bias=random(1, 3)),
            replace(self.block, head_norm=self.block.norm),
        ):
            with pytest.raises(ValueError, match=r"share|shape|fit"):
                self.ops.mix(random(1, 1, 64), wrong, [state], one_span(1))

    def test_mamba_blocks_whose_parts_do_not_fit(self) -> None:
        block = Parts(self.ops, "F32").mamba()
        state = self.ops.make_state(block)
        for wrong in (
            replace(block, convolution_bias=random(1, 40)),
            replace(block, skip=random(1, 3)),
            replace(block, group_norm=block.norm),
            replace(block, step_limits=(2.0, 1.0)),
        ):
            with pytest.raises(ValueError, match=r"fit|rise"):
                self.ops.mix(random(1, 1, 64), wrong, [state], one_span(1))
