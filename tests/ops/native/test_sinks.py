"""Attention with sinks, and values of another size than keys: the oracle's numbers, any cut."""

from dataclasses import replace

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.numpy.ops import NumpyOps
from native_parts import INSTRUCTION_SETS, Parts, attend_in_cuts, native_ops, random, random_cuts


def distance(got: FloatArray, expected: FloatArray) -> float:
    """Return the size of the difference, relative to what was expected."""
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("type_name", ["F32", "Q8_0"])
@pytest.mark.parametrize("value_dim", [16, 24, 64])
def test_attention_with_sinks_and_other_values_is_near_the_oracle(
    instruction_set: str, type_name: str, value_dim: int
) -> None:
    x, results = random(1, 150, 64), []
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = Parts(ops, type_name, num_heads=4).sunk_attention(value_dim=value_dim, window=30)
        results.append(attend_in_cuts(ops, block, x, [100, 1, 4, 45]) - x)
        without = attend_in_cuts(ops, replace(block, sinks=None), x, [150]) - x
        assert distance(without, results[-1]) > 0.05, "sinks were to matter"
    assert distance(*results) < (2e-4 if type_name == "F32" else 0.03)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_a_sink_above_all_scores_leaves_nothing_of_the_values(instruction_set: str) -> None:
    x = random(1, 70, 64)
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = replace(Parts(ops, "F32").sunk_attention(), sinks=np.full(6, 300, np.float32))
        assert np.array_equal(attend_in_cuts(ops, block, x, [70]), x)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("value_dim", [16, 64])
def test_sinks_join_at_the_same_place_however_rows_are_cut(
    instruction_set: str, window: int | None, value_dim: int
) -> None:
    rng = np.random.default_rng(4)
    x, whole = random(5, 330, 64), None
    for threads in (1, 2, 3):
        ops = native_ops(instruction_set, threads)
        block = Parts(ops, "Q8_0").sunk_attention(value_dim=value_dim, window=window)
        for cuts in ([len(x)], [1] * len(x), random_cuts(rng, len(x))):
            result = attend_in_cuts(ops, block, x, cuts).tobytes()
            whole = whole or result
            assert result == whole, (threads, cuts)
