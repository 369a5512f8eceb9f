"""The small maths that only training does, plain or fused by torch.compile.

In:  rows of activations, always flattened to (N, …), so that few shapes need compiling.
Out: rows. `make_pointwise(compile=False)` is the plain truth; the compiled set computes the same.
What inference computes as well is in `ops/torch/maths.py`.
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
"""Weights that share a scale where matrices are packed."""


@dataclass(frozen=True, slots=True)
class Pointwise:
    """The set of fused functions that heads in training, losses and the sampler work with."""

    pick: Callable[..., Any]
    mix_scores: Callable[..., Any]
    loss_forward: Callable[..., Any]
    loss_backward: Callable[..., Any]
    round_to_q4: Callable[..., Any]


def make_pointwise(*, compile: bool) -> Pointwise:
    """Return the functions, fused where asked for."""
    plain = (pick, mix_scores, loss_forward, loss_backward, round_to_q4)
    return Pointwise(*fuse(*plain, compile=compile))


def noise(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """Return Gumbel noise for (row seed, position, token id): (N,), (N,), (V,) → (N, V).

    A counter-based hash in wrapping 32-bit arithmetic: no state, no memory traffic once fused, and
    the same numbers whenever an answer is looked at again.
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


def mix_scores(causal: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over step-0 scores (B, KV, G, T, T), causal, and the chain's own (B, KV, G, T, J).

    A chain that starts at t sees the true entries up to t, and of the later steps only its own.
    """
    index = torch.arange(causal.shape[-1], device=causal.device)
    is_later = index[None, :] > index[:, None]
    scores = causal.float().masked_fill(is_later, float("-inf"))
    wide = own.float()
    # Two tensors all the way: one joined tensor would have to be copied apart again.
    peak = torch.maximum(scores.amax(-1, keepdim=True), wide.amax(-1, keepdim=True)).detach()
    causal_mass, own_mass = (scores - peak).exp(), (wide - peak).exp()
    total = causal_mass.sum(-1, keepdim=True) + own_mass.sum(-1, keepdim=True)
    return (causal_mass / total).to(causal.dtype), (own_mass / total).to(own.dtype)


def loss_forward(
    logits: Tensor, targets: Tensor, sharpness: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return per row KL(p‖q), overlap Σ min(p, q), and the q-mass of tokens with q < p.

    Both sides are looked at with their logits times `sharpness`, 1 / temperature: (N,).
    """
    log_q = (logits.float() * sharpness[:, None]).log_softmax(-1)
    log_p = (targets.float() * sharpness[:, None]).log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    divergence = (p * (log_p - log_q)).sum(-1)
    overlap = torch.minimum(p, q).sum(-1)
    short_mass = torch.where(q < p, q, torch.zeros_like(q)).sum(-1)
    return divergence, overlap, short_mass


def loss_backward(
    logits: Tensor, targets: Tensor, sharpness: Tensor, scales: Tensor, short_mass: Tensor
) -> Tensor:
    """Return d(scales[0] * KL - scales[1] * overlap) / d logits, row by row."""
    q = (logits.float() * sharpness[:, None]).softmax(-1)
    p = (targets.float() * sharpness[:, None]).softmax(-1)
    is_short = (q < p).float()
    kl_scale, overlap_scale = scales * sharpness
    slope = kl_scale[:, None] * (q - p)
    slope = slope - overlap_scale[:, None] * q * (is_short - short_mass[:, None])
    return slope.to(logits.dtype)


def _mix(bits: Tensor) -> Tensor:
    """Scramble 32 bits (lowbias32); the masks make right shifts logical."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits = bits * _FIRST
    bits = bits ^ ((bits >> 15) & 0x1FFFF)
    bits = bits * _SECOND
    return bits ^ ((bits >> 16) & 0xFFFF)


def round_to_q4(weight: Tensor) -> Tensor:
    """Return what packing a matrix to 4 bits leaves of it, as `csrc/pack.cpp` rounds: (out, in)."""
    groups = weight.float().view(-1, GROUP)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / 15).half().float()
    minimum = low.half().float()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    levels = ((groups - minimum) * inverse).round().clamp(0, 15)
    return (levels * scale + minimum).view_as(weight).to(weight.dtype)
