"""Pointwise functions of training, plain or fused by torch.compile.

In:  rows of activations, flattened to (N, …), so that few shapes need compiling.
Out: rows. `make_pointwise(compile=False)` is the reference for the compiled functions.
Functions that inference also needs are in `ops/torch/maths.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headlong.ops.torch.maths import fuse

_GOLDEN = -1640531527  # 0x9E3779B9
_FIRST = 0x7FEB352D
_SECOND = -2073254261  # 0x846CA68B

GROUP = 32
"""Number of weights that share a scale in packed matrices."""


@dataclass(frozen=True, slots=True)
class Pointwise:
    """The functions for heads in training, losses and the sampler."""

    pick: Callable[..., Any]
    mix_scores: Callable[..., Any]
    loss_forward: Callable[..., Any]
    loss_backward: Callable[..., Any]
    round_to_q4: Callable[..., Any]


def make_pointwise(*, compile: bool) -> Pointwise:
    """Return the functions, fused with `compile`."""
    plain = (pick, mix_scores, loss_forward, loss_backward, round_to_q4)
    return Pointwise(*fuse(*plain, compile=compile))


def noise(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Return Gumbel noise for (row seed, position, token id): (N,), (N,), (V,) → (N, V).

    A counter-based hash in wrapping 32-bit arithmetic: it has no state, needs no memory traffic
    once fused, and gives the same noise when an answer is evaluated again.
    """
    key = _mix(_mix(seeds.int()) + positions.int() * _GOLDEN)  # (N,)
    bits = _mix(key[:, None] + (token_ids.int() * _GOLDEN)[None])  # (N, V)
    uniform = ((bits & 0xFFFFFF).float() + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform))


def pick(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Pick argmax(logits + temperature * noise) per row; at temperature 0 plain argmax."""
    token_ids = torch.arange(logits.shape[-1], device=logits.device, dtype=torch.int32)
    gumbel = noise(seeds, positions, token_ids)
    return (logits.float() + temperatures[:, None] * gumbel).argmax(-1)


def mix_scores(causal: Tensor, own: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over first-step scores (B, KV, G, S, T) and the chain's own scores (B, KV, G, S, J).

    A chain that starts at position t, (B, S), attends to first-step entries up to t, and to its own
    entries of later steps.
    """
    index = torch.arange(causal.shape[-1], device=causal.device)
    is_later = index > positions[:, None, None, :, None]
    scores = causal.float().masked_fill(is_later, float("-inf"))
    wide = own.float()
    # Two separate tensors: a concatenated one would have to be split again by copying.
    peak = torch.maximum(scores.amax(-1, keepdim=True), wide.amax(-1, keepdim=True)).detach()
    causal_mass, own_mass = (scores - peak).exp(), (wide - peak).exp()
    total = causal_mass.sum(-1, keepdim=True) + own_mass.sum(-1, keepdim=True)
    return (causal_mass / total).to(causal.dtype), (own_mass / total).to(own.dtype)


def loss_forward(
    logits: Tensor, targets: Tensor, logit_scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return per row KL(p‖q), overlap Σ min(p, q), and the q-mass of tokens with q < p.

    All logits are first multiplied by `logit_scales`, 1 / temperature: (N,).
    """
    log_q = (logits.float() * logit_scales[:, None]).log_softmax(-1)
    log_p = (targets.float() * logit_scales[:, None]).log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    divergence = (p * (log_p - log_q)).sum(-1)
    overlap = torch.minimum(p, q).sum(-1)
    short_mass = torch.where(q < p, q, torch.zeros_like(q)).sum(-1)
    return divergence, overlap, short_mass


def loss_backward(
    logits: Tensor,
    targets: Tensor,
    logit_scales: Tensor,
    scales: Tensor,
    short_mass: Tensor,
) -> Tensor:
    """Return d(scales[0] * KL - scales[1] * overlap) / d logits of every row."""
    q = (logits.float() * logit_scales[:, None]).softmax(-1)
    p = (targets.float() * logit_scales[:, None]).softmax(-1)
    is_short = (q < p).float()
    kl_scale, overlap_scale = scales * logit_scales
    gradient = kl_scale[:, None] * (q - p)
    gradient = gradient - overlap_scale[:, None] * q * (is_short - short_mass[:, None])
    return gradient.to(logits.dtype)


def _mix(bits: Tensor) -> Tensor:
    """Hash 32 bits (lowbias32); the masks make right shifts logical."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits = bits * _FIRST
    bits = bits ^ ((bits >> 15) & 0x1FFFF)
    bits = bits * _SECOND
    return bits ^ ((bits >> 16) & 0xFFFF)


def round_to_q4(weight: Tensor) -> Tensor:
    """Round a matrix as packing to 4 bits does in `csrc/pack.cpp`: (out, in)."""
    groups = weight.float().view(-1, GROUP)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / 15).half().float()
    minimum = low.half().float()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    levels = ((groups - minimum) * inverse).round().clamp(0, 15)
    return (levels * scale + minimum).view_as(weight).to(weight.dtype)
