"""Channel parts in MLX: dense MLPs, mixtures of experts, per-layer inputs.

In:  rows, and the spec of a channel part. Out: what the part adds to the rows.
A row's experts are chosen from its own numbers and summed in the order of their numbers. Nothing is
read back for that: all experts of a kind lie in one stack, of which each row gathers its own.
"""

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from headlong.ops.blocks import Experts, GatedMlp, PerLayerInput, Router
from headlong.ops.mlx.maths import ACTIVATIONS, GATES, gate_by_sigmoid
from headlong.ops.numpy.experts import SMALLEST_SUM

if TYPE_CHECKING:
    from headlong.ops.mlx.ops import MlxOps


def mlp_result(ops: "MlxOps", x: Any, block: GatedMlp) -> Any:
    """Return what a dense MLP adds to x: (N, H) → (N, H)."""
    normed = ops.norm(x, block.norm)
    if block.gate is None:
        inner = ACTIVATIONS[block.activation](ops.project(normed, block.up))
    else:
        inner = GATES[block.activation](*ops.project_fused(normed, block, block.gate, block.up))
    result = ops.project(inner, block.down)
    return result if block.output_norm is None else ops.norm(result, block.output_norm)


def experts_result(ops: "MlxOps", x: Any, block: Experts) -> Any:
    """Return what a mixture of experts adds to x: (N, H) → (N, H)."""
    normed = ops.norm(x, block.norm)
    router = block.router
    read = normed if router.norm is None else ops.norm(x, router.norm)
    logits = ops.project(read, router.linear).astype(mx.float32)
    chosen, shares = choose(ops, logits, router)  # (N, k) each
    inputs = normed if block.reduce is None else ops.project(normed, block.reduce)
    results = _run_experts(ops, inputs, block, chosen)  # (N, k, D)
    total = shares[:, :1] * results[:, 0]
    for place in range(1, router.num_chosen):
        total = total + shares[:, place : place + 1] * results[:, place]
    total = total.astype(x.dtype)
    if block.expand is not None:
        total = ops.project(total, block.expand)
    if block.sum_norm is not None:
        total = ops.norm(total, block.sum_norm)
    if block.shared is not None:
        shared = mlp_result(ops, x, block.shared)
        if block.shared_gate is not None:
            shared = gate_by_sigmoid(shared, ops.project(normed, block.shared_gate))
        total = total + shared
    return total if block.output_norm is None else ops.norm(total, block.output_norm)


def per_layer_result(ops: "MlxOps", x: Any, block: PerLayerInput, beside: Any) -> Any:
    """Return what a token's own numbers for a layer add to x: (N, H), (N, F) → (N, H)."""
    gate = ops.project(x, block.gate)
    own = beside[:, block.first : block.first + gate.shape[1]]
    return ops.norm(ops.project(GATES["gelu_tanh"](gate, own), block.projection), block.norm)


def choose(ops: "MlxOps", logits: Any, router: Router) -> tuple[Any, Any]:
    """Return every row's experts in the order of their numbers, and their shares: twice (N, k).

    A score that is not a number is chosen before all others, so that it is noticed.
    """
    scores = mx.sigmoid(logits) if router.scoring == "sigmoid" else mx.softmax(logits, axis=-1)
    heights = scores
    if router.choice_bias is not None:
        heights = scores + ops.vector(router, "choice_bias")
    heights = mx.where(mx.isnan(heights), mx.inf, heights)
    if router.num_groups > 1:
        heights = _within_best_groups(heights, router)
    chosen = mx.sort(_highest(heights, router.num_chosen), axis=-1)
    shares = mx.take_along_axis(scores, chosen, axis=-1)
    if router.is_renormalised:
        shares = shares / (shares.sum(-1, keepdims=True) + float(SMALLEST_SUM))
    if router.scales is not None:
        shares = shares * ops.vector(router, "scales")[chosen]
    return chosen, shares


def _run_experts(ops: "MlxOps", rows: Any, block: Experts, chosen: Any) -> Any:
    """Run the chosen experts of every row: (N, D), (N, k) → (N, k, D)."""
    stacks = ops.stacks(block)
    each = mx.broadcast_to(rows[:, None], (len(rows), chosen.shape[1], rows.shape[1]))
    inner = stacks["up"].gather(each, chosen)
    if "gate" in stacks:
        inner = GATES[block.activation](stacks["gate"].gather(each, chosen), inner)
    else:
        inner = ACTIVATIONS[block.activation](inner)
    return stacks["down"].gather(inner, chosen)


def _within_best_groups(heights: Any, router: Router) -> Any:
    """Put experts of all but the best groups below all others."""
    groups = heights.reshape(len(heights), router.num_groups, -1)  # (N, groups, of each)
    best_two = mx.sort(groups, axis=-1)[..., -2:].sum(-1)
    kept = _highest(best_two, router.num_chosen_groups)
    is_kept = (mx.arange(router.num_groups)[None, :, None] == kept[:, None]).any(-1)
    return mx.where(is_kept[..., None], groups, -mx.inf).reshape(heights.shape)


def _highest(values: Any, count: int) -> Any:
    """Return the places of the highest values of each row; of equal ones the first."""
    return mx.argsort(-values, axis=-1)[:, :count]
