"""Mixtures of experts in numpy: the formula, the choice, and batch invariance in bytes."""

from dataclasses import replace

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.blocks import Expert, Experts, GatedMlp, Linear, Norm, Router
from headlong.ops.numpy.experts import choose
from headlong.ops.numpy.maths import silu
from headlong.ops.numpy.ops import NumpyOps
from native_parts import EXPERT_KINDS, Parts, random
from plain_maths import Float64Array

OPS = NumpyOps()
PARTS = Parts(OPS, "F32")


def rms(x: FloatArray, norm: Norm) -> FloatArray:
    """Apply a norm to one row."""
    return np.asarray(x / np.sqrt(np.mean(x * x) + norm.eps) * norm.weight)


def times(linear: Linear, x: FloatArray) -> FloatArray:
    """Apply a projection to one row."""
    y = linear.weight.values @ x
    return np.asarray(y if linear.bias is None else y + linear.bias)


def activate(x: FloatArray, name: str) -> FloatArray:
    """Apply an activation."""
    if name == "relu_squared":
        return np.asarray(np.maximum(x, 0) ** 2)
    if name == "silu":
        return np.asarray(x / (1 + np.exp(-x)))
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def inner(x: FloatArray, mlp: Expert | GatedMlp, name: str) -> FloatArray:
    """Run an MLP without norms over one row."""
    up = times(mlp.up, x)
    gated = activate(up, name) if mlp.gate is None else activate(times(mlp.gate, x), name) * up
    return times(mlp.down, gated)


def chosen_by_hand(heights: Float64Array, router: Router) -> list[int]:
    """Return the chosen experts of one row, the best first."""
    size = len(heights) // router.num_groups
    groups = [heights[i : i + size] for i in range(0, len(heights), size)]
    by_group = sorted(range(len(groups)), key=lambda i: (-sum(sorted(groups[i])[-2:]), i))
    allowed = set(by_group[: router.num_chosen_groups])
    numbers = [i for i in range(len(heights)) if router.num_groups == 1 or i // size in allowed]
    return sorted(numbers, key=lambda i: (-heights[i], i))[: router.num_chosen]


def formula(x: FloatArray, block: Experts) -> FloatArray:
    """Compute what a mixture of experts makes of one row, straight from its definition."""
    router, normed = block.router, rms(x, block.norm)
    logits = times(router.linear, normed if router.norm is None else rms(x, router.norm))
    scores = 1 / (1 + np.exp(-logits))
    if router.scoring == "softmax":
        scores = np.exp(logits) / np.exp(logits).sum()
    bias = 0 if router.choice_bias is None else router.choice_bias
    chosen = chosen_by_hand(scores + bias, router)
    shares = scores[chosen] / (scores[chosen].sum() if router.is_renormalised else 1)
    if router.scales is not None:
        shares = shares * router.scales[chosen]
    read = normed if block.reduce is None else times(block.reduce, normed)
    total = sum(
        share * inner(read, block.experts[number], block.activation)
        for number, share in zip(chosen, shares, strict=True)
    )
    total = total if block.expand is None else times(block.expand, np.asarray(total))
    total = total if block.sum_norm is None else rms(np.asarray(total), block.sum_norm)
    assert block.shared is not None
    shared = inner(rms(x, block.shared.norm), block.shared, block.shared.activation)
    if block.shared.output_norm is not None:
        shared = rms(shared, block.shared.output_norm)
    if block.shared_gate is not None:
        shared = shared / (1 + np.exp(-times(block.shared_gate, normed)))
    result = np.asarray(total + shared)
    return x + (result if block.output_norm is None else rms(result, block.output_norm))


@pytest.mark.parametrize("kind", EXPERT_KINDS)
def test_experts_equal_their_formula(kind: str) -> None:
    block, x = PARTS.experts(kind), random(1, 20, 64)
    expected = np.stack([formula(row, block) for row in x])
    np.testing.assert_allclose(OPS.transform(x, block), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", EXPERT_KINDS)
def test_what_is_beside_a_row_changes_no_bit(kind: str) -> None:
    block, x = PARTS.experts(kind), random(2, 40, 64)
    whole = OPS.transform(x, block)
    order = np.random.default_rng(3).permutation(len(x))
    assert OPS.transform(x[order], block).tobytes() == whole[order].tobytes()
    for first in range(0, len(x), 3):
        part = OPS.transform(x[first : first + 3], block)
        assert part.tobytes() == whole[first : first + 3].tobytes()


def test_an_mlp_without_a_gate_squares_what_is_positive() -> None:
    block, x = PARTS.squared_mlp(), random(4, 3, 64)
    expected = [row + inner(rms(row, block.norm), block, "relu_squared") for row in x]
    np.testing.assert_allclose(OPS.transform(x, block), expected, rtol=2e-4, atol=2e-5)


def router(**fields: object) -> Router:
    """Return a router of eight experts, two of them chosen."""
    return replace(Router(PARTS.linear(1, 8, 64), num_chosen=2), **fields)  # type: ignore[arg-type]


def test_of_equal_scores_the_first_are_chosen() -> None:
    logits = (np.arange(512) % 7 == 3).astype(np.float32)
    chosen, shares = choose(logits[None], Router(PARTS.linear(1, 512, 64), num_chosen=2))
    assert chosen.tolist() == [[3, 10]]
    assert shares.tolist() == [[0.5, 0.5]]


def test_the_choice_bias_does_not_change_shares() -> None:
    logits = np.array([[0, 1, 2, 3, 0, 0, 0, 0]], dtype=np.float32)
    bias = np.array([0, 0, 0, 0, 0, 0, 8, 9], dtype=np.float32)
    one = router(scoring="sigmoid", choice_bias=bias, is_renormalised=False)
    chosen, shares = choose(logits, one)
    assert chosen.tolist() == [[6, 7]]
    assert shares.tolist() == [[0.5, 0.5]]


def test_a_group_is_as_good_as_its_two_best() -> None:
    """The best expert of all stands in a group that is worse than the other."""
    logits = np.array([[3, -9, -9, -9, 2, 2, 0, 0]], dtype=np.float32)
    one = router(scoring="sigmoid", num_groups=2)
    assert choose(logits, one)[0].tolist() == [[4, 5]]
    assert choose(logits, replace(one, num_groups=1))[0].tolist() == [[0, 4]]


def test_scores_that_are_all_zero_give_no_nan() -> None:
    logits = np.full((1, 8), -1e4, dtype=np.float32)
    assert choose(logits, router(scoring="sigmoid"))[1].tolist() == [[0, 0]]


@pytest.mark.parametrize("num_groups", [1, 4])
def test_a_score_that_is_not_a_number_is_noticed(num_groups: int) -> None:
    logits = np.array([[5, 4, 3, 2, 1, 0, -1, np.nan]], dtype=np.float32)
    one = router(scoring="sigmoid", num_groups=num_groups)
    chosen, shares = choose(logits, one)
    assert 7 in chosen
    assert np.isnan(shares).any()


def test_huge_negative_gate_gives_zero_without_warning() -> None:
    assert silu(np.array([-1e4], dtype=np.float32))[0] == 0
