"""Mixtures of experts on compiled kernels: the oracle's numbers, and the same bits on every way."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.ops.blocks import Channel, Experts, Linear
from headlong.ops.native.ops import NativeOps
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Ops
from native_parts import EXPERT_KINDS, INSTRUCTION_SETS, Parts, native_ops, random, stored

KINDS = (*EXPERT_KINDS, "squared", "lone")


def channel(ops: Ops, type_name: str, kind: str, inner: int = 96) -> Channel:
    """Return a channel part; a lone mixture has no shared part."""
    parts = Parts(ops, type_name)
    if kind == "squared":
        return parts.squared_mlp()
    if kind == "lone":
        return replace(parts.experts("deepseek", inner=inner), shared=None)
    return parts.experts(kind, inner=inner)


@pytest.mark.parametrize("num_rows", [1, 5, 40])
@pytest.mark.parametrize(("type_name", "inner"), [("F32", 83), ("Q8_0", 96), ("Q4_1", 160)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_results_are_those_of_the_oracle(
    instruction_set: str, kind: str, type_name: str, inner: int, num_rows: int
) -> None:
    x, results = random(1, num_rows, 64), []
    for ops in (native_ops(instruction_set), NumpyOps()):
        block = channel(ops, type_name, kind, inner)
        results.append(ops.transform(x, block) - x)
    got, expected = results
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert error < (1e-5 if type_name == "F32" else 3e-2)


@pytest.mark.parametrize("type_name", ["Q8_0", "F16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_neighbours_threads_and_replicas_change_no_bit(
    instruction_set: str, kind: str, type_name: str
) -> None:
    x = random(2, 33, 64)
    order = np.random.default_rng(3).permutation(len(x))
    results = set()
    for threads, is_far in ((1, False), (2, False), (2, True), (3, False), (3, True)):
        ops = native_ops(instruction_set, threads)
        ops.engine.set_far_apart(is_far)
        block = channel(ops, type_name, kind)
        shuffled = np.empty_like(x)
        shuffled[order] = ops.transform(x[order], block)
        results |= {ops.transform(x, block).tobytes(), shuffled.tobytes()}
        for size in (1, 2, 7):
            cuts = [ops.transform(x[i : i + size], block) for i in range(0, len(x), size)]
            results.add(np.concatenate(cuts).tobytes())
    assert len(results) == 1


def routed(ops: NativeOps, logits: FloatArray, **fields: Any) -> list[int]:
    """Return the experts that one row of these logits goes to; expert i leaves its mark at i."""
    parts = Parts(ops, "F32")
    hidden, num_experts = parts.hidden_size, len(logits)
    x = random(5, 1, hidden)
    block = parts.experts("qwen", num_experts=num_experts)
    normed = ops.norm(x, block.norm)[0]
    weight = np.outer(logits, normed / (normed @ normed)).astype(np.float32)
    weight[np.isnan(logits)] = np.nan
    marks = np.zeros((num_experts, hidden, 96), dtype=np.float32)
    marks[np.arange(num_experts), np.arange(num_experts)] = 1
    experts = tuple(
        replace(expert, down=Linear(ops.matrix(stored("F32", mark))))
        for expert, mark in zip(block.experts, marks, strict=True)
    )
    router = replace(block.router, linear=Linear(ops.matrix(stored("F32", weight))), **fields)
    lone = Experts(block.norm, router, experts)
    moved = ops.transform(x, lone)[0] - x[0]
    assert np.isfinite(moved).all() or np.isnan(logits).any()
    return [int(i) for i in np.flatnonzero(np.nan_to_num(moved, nan=1.0))]


def test_of_equal_scores_the_first_are_chosen() -> None:
    ops = native_ops("auto")
    assert routed(ops, np.zeros(8, dtype=np.float32), num_chosen=3) == [0, 1, 2]


def test_a_group_is_as_good_as_its_two_best() -> None:
    ops = native_ops("auto")
    logits = np.array([3, -9, -9, -9, 2, 2, 0, 0], dtype=np.float32)
    fields: dict[str, Any] = {"num_chosen": 2, "scoring": "sigmoid"}
    assert routed(ops, logits, num_groups=2, **fields) == [4, 5]
    assert routed(ops, logits, **fields) == [0, 4]


def test_of_equal_groups_the_first_are_chosen() -> None:
    ops = native_ops("auto")
    fields: dict[str, Any] = {"num_chosen": 2, "scoring": "sigmoid", "num_groups": 4}
    fields["num_chosen_groups"] = 2
    logits = np.array([1, 1, 0, 0, 1, 1, 1, 1], dtype=np.float32)
    assert routed(ops, logits, **fields) == [0, 1]
    assert routed(ops, logits[::-1].copy(), **fields) == [0, 1]
    bias = np.array([0, 0, 0, 0, 9, 9, 9, 9], dtype=np.float32)
    assert routed(ops, logits, choice_bias=bias, **fields) == [4, 5]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_score_that_is_not_a_number_is_noticed(scoring: str) -> None:
    ops = native_ops("auto")
    logits = np.array([5, 4, 3, 2, 1, 0, -1, np.nan], dtype=np.float32)
    assert len(routed(ops, logits, scoring=scoring)) == 64  # every number of the row


class TestShapes:
    """Blocks whose parts do not fit together never reach the kernels."""

    ops = native_ops("auto", threads=1)
    parts = Parts(ops, "F32")
    x = random(1, 1, 64)

    def refuse(self, match: str, **fields: Any) -> None:
        block = self.parts.experts("nemotron")
        with pytest.raises(ValueError, match=match):
            self.ops.transform(self.x, replace(block, **fields))

    def test_router(self) -> None:
        router = self.parts.experts("nemotron").router
        self.refuse("the router", router=replace(router, linear=self.parts.linear(1, 7, 64)))
        quantised = Parts(self.ops, "Q8_0").linear(1, 8, 64)
        self.refuse("quantised", router=replace(router, linear=quantised))
        self.refuse("scales", router=replace(router, scales=np.ones(7, np.float32)))
        wrongs: list[dict[str, Any]] = [{"num_chosen": 9}, {"num_groups": 3}, {"num_chosen": 0}]
        for wrong in wrongs:
            self.refuse("groups or the number", router=replace(router, **wrong))

    def test_experts(self) -> None:
        experts = self.parts.experts("nemotron").experts
        self.refuse("needs experts", experts=())
        other = replace(experts[0], down=self.parts.linear(1, 64, 96))
        self.refuse("the down projection", experts=(*experts[1:], other))
        gated = replace(experts[0], gate=self.parts.linear(1, 96, 32))
        self.refuse("differ in size or format", experts=(*experts[1:], gated))

    def test_latent_and_shared_part(self) -> None:
        self.refuse("a way in and a way out", expand=None)
        self.refuse("out of the latent", expand=self.parts.linear(1, 64, 64))
        gate = self.parts.linear(1, 1, 64)
        self.refuse("a gate needs", shared=None, shared_gate=gate)
        wide = Parts(self.ops, "F32", hidden_size=96)
        self.refuse("differs in size", shared=wide.squared_mlp())
