"""Channel parts in numpy, the oracle of the kernels: MLPs, mixtures of experts, per-layer inputs.

In:  rows, and the spec of a channel part. Out: what the part adds to the rows.
A row's experts are chosen from its own numbers and summed in the order of their numbers, so what is
beside it changes no bit.
"""

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops.blocks import Activation, Expert, Experts, GatedMlp, PerLayerInput, Router
from headlong.ops.numpy.maths import ACTIVATIONS, sigmoid
from headlong.ops.op_set import Ops

SMALLEST_SUM = np.float32(1e-20)
"""Added to the sum of scores before shares are divided by it; sigmoids may all be 0."""


def mlp_result(ops: Ops, x: FloatArray, block: GatedMlp) -> FloatArray:
    """Return what a dense MLP adds to x: (N, H) → (N, H)."""
    result = _inner(ops, ops.norm(x, block.norm), block, block.activation)
    if block.output_norm is not None:
        result = ops.norm(result, block.output_norm)
    return result


def experts_result(ops: Ops, x: FloatArray, block: Experts) -> FloatArray:
    """Return what a mixture of experts adds to x: (N, H) → (N, H)."""
    normed = ops.norm(x, block.norm)
    router = block.router
    read = normed if router.norm is None else ops.norm(x, router.norm)
    chosen, shares = choose(ops.project(read, router.linear), router)
    inputs = normed if block.reduce is None else ops.project(normed, block.reduce)
    total: FloatArray = np.zeros_like(inputs)
    for number in np.unique(chosen):
        rows, places = np.nonzero(chosen == number)
        result = _inner(ops, inputs[rows], block.experts[number], block.activation)
        total[rows] += shares[rows, places, None] * result
    if block.expand is not None:
        total = ops.project(total, block.expand)
    if block.sum_norm is not None:
        total = ops.norm(total, block.sum_norm)
    if block.shared is not None:
        shared = mlp_result(ops, x, block.shared)
        if block.shared_gate is not None:
            shared = shared * sigmoid(ops.project(normed, block.shared_gate))
        total = total + shared
    if block.output_norm is not None:
        total = ops.norm(total, block.output_norm)
    return total


def per_layer_result(
    ops: Ops, x: FloatArray, block: PerLayerInput, beside: FloatArray
) -> FloatArray:
    """Return what a token's own numbers for a layer add to x: (N, H), (N, F) → (N, H)."""
    gate = ops.project(x, block.gate)  # (N, P)
    own = beside[:, block.first : block.first + gate.shape[1]]
    inner = ACTIVATIONS["gelu_tanh"](gate) * own
    result: FloatArray = ops.norm(ops.project(inner, block.projection), block.norm)
    return result


def choose(logits: FloatArray, router: Router) -> tuple[IntArray, FloatArray]:
    """Return every row's experts in the order of their numbers, and their shares: twice (N, k).

    A score that is not a number is chosen before all others, so that it is noticed.
    """
    scores = sigmoid(logits) if router.scoring == "sigmoid" else _softmax(logits)
    heights = scores if router.choice_bias is None else scores + router.choice_bias
    heights = np.where(np.isnan(heights), np.float32(np.inf), heights)
    if router.num_groups > 1:
        heights = _within_best_groups(heights, router)
    chosen = np.sort(_highest(heights, router.num_chosen), axis=-1)
    shares = np.take_along_axis(scores, chosen, axis=-1)
    if router.is_renormalised:
        shares = shares / (np.sum(shares, axis=-1, keepdims=True) + SMALLEST_SUM)
    return chosen, shares if router.scales is None else shares * router.scales[chosen]


def _inner(
    ops: Ops, rows: FloatArray, block: GatedMlp | Expert, activation: Activation
) -> FloatArray:
    """Up, gate where there is one, activation, down."""
    up: FloatArray = ops.project(rows, block.up)
    activate = ACTIVATIONS[activation]
    inner = activate(up) if block.gate is None else activate(ops.project(rows, block.gate)) * up
    result: FloatArray = ops.project(inner, block.down)
    return result


def _softmax(logits: FloatArray) -> FloatArray:
    weights = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    shares: FloatArray = weights / np.sum(weights, axis=-1, keepdims=True)
    return shares


def _within_best_groups(heights: FloatArray, router: Router) -> FloatArray:
    """Put experts of all but the best groups below all others."""
    groups = heights.reshape(len(heights), router.num_groups, -1)  # (N, groups, of each)
    best_two = np.sort(groups, axis=-1)[..., -2:]
    kept = _highest(np.sum(best_two, axis=-1), router.num_chosen_groups)
    is_kept = np.zeros(groups.shape[:2], dtype=bool)
    np.put_along_axis(is_kept, kept, True, axis=-1)
    return np.where(is_kept[..., None], groups, np.float32(-np.inf)).reshape(heights.shape)


def _highest(values: FloatArray, count: int) -> IntArray:
    """Return the places of the highest values of each row; of equal ones the first."""
    order: IntArray = np.argsort(-values, axis=-1, kind="stable")
    return order[:, :count]
