"""Channel parts in torch: dense MLPs, mixtures of experts, per-layer inputs.

In:  rows on the device, and the spec of a channel part. Out: what the part adds to the rows.
A row's experts are chosen from its own numbers and summed in the order of their numbers; in exact
mode all maths is row by row, so what is beside a row changes no bit.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import Activation, Expert, Experts, GatedMlp, Linear, PerLayerInput, Router
from headlong.ops.numpy.experts import SMALLEST_SUM
from headlong.ops.torch.maths import ACTIVATIONS

if TYPE_CHECKING:
    from headlong.ops.torch.ops import TorchOps


def mlp_result(ops: "TorchOps", x: Tensor, block: GatedMlp) -> Tensor:
    """Return what a dense MLP adds to x: (N, H) → (N, H)."""
    result = _inner(ops, ops.norm(x, block.norm), block, block.activation)
    return result if block.output_norm is None else ops.norm(result, block.output_norm)


def experts_result(ops: "TorchOps", x: Tensor, block: Experts) -> Tensor:
    """Return what a mixture of experts adds to x: (N, H) → (N, H)."""
    normed = ops.norm(x, block.norm)
    router = block.router
    read = normed if router.norm is None else ops.norm(x, router.norm)
    logits = _project_wide(ops, read, router.linear)
    choices = [choose(rows, router) for rows in ops.apart(logits)]
    chosen, shares = (torch.cat(parts) for parts in zip(*choices, strict=True))  # (N, k) each
    inputs = normed if block.reduce is None else ops.project(normed, block.reduce)
    total = torch.zeros_like(inputs, dtype=torch.float32)
    for number in chosen.unique().tolist():
        rows, places = torch.nonzero(chosen == number, as_tuple=True)
        result = _inner(ops, inputs[rows], block.experts[number], block.activation)
        total[rows] += shares[rows, places, None] * result
    total = total.to(x.dtype)
    if block.expand is not None:
        total = ops.project(total, block.expand)
    if block.sum_norm is not None:
        total = ops.norm(total, block.sum_norm)
    if block.shared is not None:
        shared = mlp_result(ops, x, block.shared)
        if block.shared_gate is not None:
            gate = ops.by_row(torch.sigmoid, _project_wide(ops, normed, block.shared_gate))
            shared = (shared * gate).to(x.dtype)
        total = total + shared
    return total if block.output_norm is None else ops.norm(total, block.output_norm)


def per_layer_result(ops: "TorchOps", x: Tensor, block: PerLayerInput, beside: Tensor) -> Tensor:
    """Return what a token's own numbers for a layer add to x: (N, H), (N, F) → (N, H)."""
    gate = ops.project(x, block.gate)
    own = beside[:, block.first : block.first + gate.shape[1]]
    inner = ops.by_row(ops.maths.gates["gelu_tanh"], torch.cat([gate, own], -1))
    return ops.norm(ops.project(inner, block.projection), block.norm)


def choose(logits: Tensor, router: Router) -> tuple[Tensor, Tensor]:
    """Return every row's experts in the order of their numbers, and their shares: twice (N, k).

    A score that is not a number is chosen before all others, so that it is noticed.
    """
    scores = torch.sigmoid(logits) if router.scoring == "sigmoid" else F.softmax(logits, -1)
    heights = scores if router.choice_bias is None else scores + _like(scores, router.choice_bias)
    heights = heights.nan_to_num(torch.inf, torch.inf, -torch.inf)
    if router.num_groups > 1:
        heights = _within_best_groups(heights, router)
    chosen = _highest(heights, router.num_chosen).sort(-1).values
    shares = scores.gather(-1, chosen)
    if router.is_renormalised:
        shares = shares / (shares.sum(-1, keepdim=True) + float(SMALLEST_SUM))
    return chosen, shares if router.scales is None else shares * _like(shares, router.scales)[
        chosen
    ]


def _project_wide(ops: "TorchOps", x: Tensor, linear: Linear) -> Tensor:
    """Apply a projection in float32, whatever type the rows and weights have."""
    with torch.autocast(x.device.type, enabled=False):  # which training has on, on CUDA
        if ops.dtype == torch.float32:
            return ops.project(x, linear)
        wide = linear.weight.values.float()
        return ops.by_row(lambda rows: F.linear(rows.float(), wide), x)


def _inner(
    ops: "TorchOps", rows: Tensor, block: GatedMlp | Expert, activation: Activation
) -> Tensor:
    """Up, gate where there is one, activation, down."""
    if block.gate is None:
        inner = ops.by_row(ACTIVATIONS[activation], ops.project(rows, block.up))
    else:
        gate_up = ops.project_fused(rows, block, block.gate, block.up)
        inner = ops.by_row(ops.maths.gates[activation], gate_up)
    return ops.project(inner, block.down)


def _within_best_groups(heights: Tensor, router: Router) -> Tensor:
    """Put experts of all but the best groups below all others."""
    groups = heights.view(len(heights), router.num_groups, -1)  # (N, groups, of each)
    best_two = groups.sort(-1).values[..., -2:].sum(-1)
    kept = _highest(best_two, router.num_chosen_groups)
    is_kept = torch.zeros_like(best_two, dtype=torch.bool).scatter(-1, kept, True)
    return torch.where(is_kept[..., None], groups, -torch.inf).view(heights.shape)


def _highest(values: Tensor, count: int) -> Tensor:
    """Return the places of the highest values of each row; of equal ones the first."""
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _like(row: Tensor, values: object) -> Tensor:
    return torch.as_tensor(values, device=row.device)
