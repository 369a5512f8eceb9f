"""Exactness in bytes: what a row yields does not depend on mates, order, chunks or threads."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from headlong.ops.blocks import Layer, Linear
from headlong.ops.op_set import Rows, Span
from mlx_files import affine
from native_parts import (
    EXACT_TYPES,
    INSTRUCTION_SETS,
    Parts,
    attend_in_cuts,
    filled_cache,
    native_ops,
    random,
    random_cuts,
    random_matrix,
)

AFFINE = [(4, 32), (4, 64), (5, 64), (8, 32), (8, 64)]
"""Bits and groups of MLX's matrices that have kernels of their own."""


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("kind", [*EXACT_TYPES, *AFFINE])
def test_projected_rows_do_not_know_their_mates(
    instruction_set: str, kind: str | tuple[int, int]
) -> None:
    rng = np.random.default_rng(1)
    for outputs, inputs in ((1, 32), (50, 96), (83, 160), (256, 64)):
        if isinstance(kind, str):
            tensor = random_matrix(kind, 3, outputs, inputs)
        else:
            tensor = affine(*kind, "BF16", outputs, 2 * inputs)
        x = random(2, 40, tensor.shape[1])
        ops = native_ops(instruction_set, threads=1)
        whole = ops.project(x, Linear(ops.matrix(tensor), None))
        for threads in (1, 2, 3):
            ops = native_ops(instruction_set, threads)
            linear = Linear(ops.matrix(tensor), None)
            order = rng.permutation(len(x))
            assert ops.project(x[order], linear).tobytes() == whole[order].tobytes()
            start = 0
            for size in random_cuts(rng, len(x)):
                part = ops.project(x[start : start + size], linear)
                assert part.tobytes() == whole[start : start + size].tobytes()
                start += size


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize("head_dim", [32, 80])
def test_attention_does_not_know_its_chunks(
    instruction_set: str, window: int | None, head_dim: int
) -> None:
    rng = np.random.default_rng(4)
    x = random(5, 210, 64)
    whole = None
    for threads in (1, 2, 3):
        ops = native_ops(instruction_set, threads)
        block = Parts(ops, "Q8_0", head_dim=head_dim).attention(window=window)
        for cuts in ([len(x)], [1] * len(x), random_cuts(rng, len(x)), random_cuts(rng, len(x))):
            result = attend_in_cuts(ops, block, x, cuts).tobytes()
            whole = whole or result
            assert result == whole, (threads, cuts)


@pytest.mark.parametrize("length", [64, 449, 700, 961])
def test_results_over_many_chunks_are_merged_alike_by_any_team(length: int) -> None:
    """Members merge what they made themselves first, so every number of chunks has other shares."""
    x = random(6, length, 64)
    whole = None
    for threads in (1, 2, 3, 5):
        ops = native_ops("auto", threads)
        block = Parts(ops, "Q8_0").attention()
        ends = ([length], [length - 30, 16, 14], [length - 30, *[1] * 30], [length - 20, 17, 3])
        for cuts in ends:
            result = attend_in_cuts(ops, block, x, cuts)[-30:].tobytes()
            whole = whole or result
            assert result == whole, (threads, cuts)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_sequences_do_not_know_each_other(instruction_set: str) -> None:
    """Decode rows, a draft to verify and a long prefill in one pass, in any order, for any team."""
    held = (130, 64, 0, 7, 700)  # positions each sequence has before the pass
    sizes = (1, 5, 80, 17, 2)
    rng = np.random.default_rng(6)

    def run(order: tuple[int, ...], threads: int = 2) -> dict[int, bytes]:
        ops = native_ops(instruction_set, threads)
        parts = Parts(ops, "Q4_1")
        layers = tuple(Layer(parts.attention(), parts.mlp()) for _ in range(2))
        caches, spans, chunks, row = [], [], [], 0
        for s in order:
            caches.append(filled_cache(ops, layers, 10 + s, held[s], held[s] + sizes[s]))
            spans.append(Span(row, sizes[s], held[s]))
            chunks.append(random(20 + s, sizes[s], 64))
            row += sizes[s]
        rows = Rows(np.zeros(row, dtype=np.int64), tuple(spans))
        y, _ = ops.run_layers(np.concatenate(chunks), layers, caches, rows)
        return {
            s: y[span.first_row : span.first_row + span.num_rows].tobytes()
            for s, span in zip(order, spans, strict=True)
        }

    alone = {s: run((s,))[s] for s in range(5)}
    for threads in (1, 2, 3, 5):
        assert run(tuple(int(s) for s in rng.permutation(5)), threads) == alone, threads


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("type_name", "head_dim"), [("Q4_1", 32), ("Q8_0", 80), ("F16", 32)])
def test_workers_with_replicas_yield_what_sharing_ones_do(
    instruction_set: str, type_name: str, head_dim: int, has_norms: bool
) -> None:
    """Workers on two dies each have a replica of what all read; no bit of any row may differ."""
    held, sizes = (130, 0, 700), (1, 5, 2)
    starts = (0, 1, 6)

    def run(threads: int, is_far: bool, is_alone: bool | None = None) -> bytes:
        """`is_alone`: one thread makes the second pass alone, or else the first."""
        ops = native_ops(instruction_set, threads)
        ops.engine.set_far_apart(is_far)
        parts = Parts(ops, type_name, head_dim=head_dim)
        norm = parts.norm(13) if has_norms else None
        attention = replace(parts.attention(), output_norm=norm)
        layers = tuple(Layer(attention, parts.mlp(is_gelu=has_norms)) for _ in range(2))
        rooms = [num + 2 * more for num, more in zip(held, sizes, strict=True)]
        caches = [filled_cache(ops, layers, 10 + s, held[s], rooms[s]) for s in range(3)]
        seen = b""
        for again in range(2):  # the second pass reads what the first one left in the caches
            if is_alone is not None:
                ops.engine.set_alone(is_alone == bool(again))
            spans = tuple(Span(starts[s], sizes[s], held[s] + again * sizes[s]) for s in range(3))
            rows = Rows(np.zeros(8, dtype=np.int64), spans)
            y, taps = ops.run_layers(random(20 + again, 8, 64), layers, caches, rows, (0, 1))
            assert taps is not None
            seen += y.tobytes() + taps.tobytes()
        return seen

    alone = run(1, is_far=False)
    for threads in (2, 3):
        for is_far in (False, True):
            assert run(threads, is_far) == alone, (threads, is_far)
            assert run(threads, is_far, is_alone=True) == alone, "a team shrinks between passes"
            assert run(threads, is_far, is_alone=False) == alone, "a team returns between passes"


def test_a_pair_knows_how_far_apart_it_is() -> None:
    pair, lone = native_ops("auto", threads=2), native_ops("auto", threads=1)
    for ops in (pair, lone):
        ops.project(random(1, 2, 64), Parts(ops, "Q8_0").linear(1, 64, 64))
    assert lone.engine.core_distance_ns == 0
    if len(os.sched_getaffinity(0)) > 1:  # workers that share one core say nothing about cores
        assert 1 < pair.engine.core_distance_ns < 1e6


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("is_beside", [False, True])
def test_last_rows_are_those_of_the_whole_layer(instruction_set: str, is_beside: bool) -> None:
    """What is left out for the other rows must show neither in the last ones nor in the cache."""
    sizes, held = (1, 70, 3), (5, 0, 64)
    x, y = random(1, sum(sizes), 64), random(2, len(sizes), 64)
    x_beside, y_beside = random(3, *x.shape), random(4, *y.shape)
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    spans = [Span(*span) for span in zip(starts, sizes, held, strict=True)]
    rows = Rows(np.zeros(len(x), dtype=np.int64), tuple(spans))
    after = tuple(Span(i, 1, held[i] + sizes[i]) for i in range(len(sizes)))
    for threads in (1, 2, 3):
        ops = native_ops(instruction_set, threads)
        parts = Parts(ops, "Q8_0")
        layer = Layer(parts.attention(is_beside=is_beside), parts.mlp())
        results = []
        for is_whole in (True, False):
            caches = [ops.engine.make_kv_layer(2, 32, 32) for _ in sizes]
            for cache, span in zip(caches, after, strict=True):
                cache.reserve(span.first_position + 1)
            beside = x_beside if is_beside else None
            if is_whole:
                attended = ops.mix(x, layer.attention, caches, rows, beside)
                got = ops.transform(attended, layer.mlp)[np.cumsum(sizes) - 1]
            else:
                got = ops.run_last(x, layer, caches, rows, beside)
            next_rows = Rows(np.zeros(len(y), dtype=np.int64), after)
            beside = y_beside if is_beside else None
            following = ops.mix(y, layer.attention, caches, next_rows, beside)
            results.append((got.tobytes(), following.tobytes()))
        assert results[0] == results[1]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_mlp_rows_do_not_know_their_mates(instruction_set: str) -> None:
    x = random(7, 33, 64)
    for type_name, inner in (("Q4_0", 160), ("F16", 83)):
        results = set()
        for threads in (1, 2, 3):
            ops = native_ops(instruction_set, threads)
            block = Parts(ops, type_name).mlp(inner=inner)
            results.add(ops.transform(x, block).tobytes())
            alone = [ops.transform(x[i : i + 1], block) for i in range(len(x))]
            results.add(np.concatenate(alone).tobytes())
        assert len(results) == 1


def test_two_python_threads_may_share_a_backend() -> None:
    ops = native_ops("auto", threads=2)
    linear = Parts(ops, "Q4_1").linear(1, 64, 64)
    x = random(2, 4, 64)
    expected = ops.project(x, linear).tobytes()
    wrong: list[int] = []

    def work() -> None:
        for i in range(200):
            if ops.project(x, linear).tobytes() != expected:
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKING = """
import os, sys
import numpy as np
from headlong.ops.native.ops import NativeOps
from native_parts import Parts, random
ops = NativeOps(3)
linear, x = Parts(ops, "Q8_0").linear(1, 64, 64), random(2, 4, 64)
expected = ops.project(x, linear).tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if ops.project(x, linear).tobytes() == expected else 1)
_, status = os.waitpid(child, 0)
sys.exit(0 if status == 0 and ops.project(x, linear).tobytes() == expected else 1)
"""


def test_a_forked_child_and_its_parent_both_go_on() -> None:
    """Threads do not survive a fork; the child must raise its own, and both must exit cleanly."""
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{FORKING}"]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
