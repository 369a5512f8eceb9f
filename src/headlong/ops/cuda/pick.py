"""Picking tokens on the device, for many rows and without the host: as `ops/numpy/host.py` does.

In:  rows of logits, how each is picked, and the position of each. Out: columns.
Every step is one number at a time, a maximum, or a sum of integers, so a row's pick depends on
nothing beside it and not on how many rows there are. On the CPU functions run row by row, since
vector units compute the last numbers of an array otherwise than the others. Top-p sums
probabilities as integers in units of 2 ** -44: where `filters.py`, which sums floats, has another
boundary, the sums were equal to ten digits.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as signed words, which wrap around alike
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_UNITS = 2.0**44


class Draw(IntEnum):
    """What the rows of a pass need; a row that needs less is picked the same by more."""

    GREEDY = 0
    NOISE = 1
    FILTERS = 2


class PickRows(NamedTuple):
    """How rows are picked (`PickRule`), one number for each."""

    temperature: Tensor  # (N,) float64
    top_k: Tensor  # (N,) int64
    top_p: Tensor  # (N,) float64
    min_p: Tensor  # (N,) float64
    stream: Tensor  # (N,) int64: `noise.noise_stream` of the seed, as signed words

    def repeated(self, times: int) -> "PickRows":
        """Return every row so many times, one after the other."""
        return PickRows(*(part.repeat_interleave(times) for part in self))


class Picked(NamedTuple):
    """What was picked."""

    columns: Tensor  # (N,) int64
    is_finite: Tensor  # (N,) bool: whether the row has a finite maximum


class MakeNoise(Protocol):
    """Returns the noise of `noise.gumbel`: streams (N,), positions (N,) → (N, V) float64."""

    def __call__(
        self, streams: Tensor, positions: Tensor, num_columns: int, token_ids: Tensor | None
    ) -> Tensor:
        """Return it; `token_ids` (V,) names the tokens of the columns, None their numbers."""


def gumbel(
    streams: Tensor, positions: Tensor, num_columns: int, token_ids: Tensor | None
) -> Tensor:
    """Return the noise, made by torch."""
    if token_ids is None:
        token_ids = torch.arange(num_columns, device=streams.device)
    keys = _mixed(streams + _GOLDEN * (positions.long() + 1))
    bits = _mixed(keys[:, None] + _GOLDEN * (token_ids + 1))
    uniform = (_shifted(bits, 12).double() + 0.5) * 2.0**-52
    return by_row(lambda row: -(-row.log()).log(), uniform)


def pick_columns(
    logits: Tensor,
    rule: PickRows,
    positions: Tensor,
    draw: Draw,
    token_ids: Tensor | None = None,
    make_noise: MakeNoise = gumbel,
) -> Picked:
    """Pick one column of every row: (N, V) float32 → (N,).

    `token_ids` (V,) names the tokens of the columns; None means column = token id.
    """
    # Of equal maxima the first; NaN counts as largest. One launch on a GPU.
    best, columns = logits.max(1, keepdim=True)
    is_finite = (best - best == 0)[:, 0]
    if draw is Draw.GREEDY:
        return Picked(columns[:, 0], is_finite)
    is_drawn = rule.temperature[:, None] > 0
    divisors = torch.where(is_drawn, rule.temperature[:, None], 1.0)
    scaled = (logits.double() - best.double()) / divisors
    if draw is Draw.FILTERS:
        scaled = torch.where(is_drawn, _filtered(scaled, rule), scaled)
    noise = make_noise(rule.stream, positions, logits.shape[1], token_ids)
    scores = scaled + torch.where(is_drawn, noise, 0.0)
    return Picked(scores.argmax(1), is_finite)


def probs_of(logits: Tensor, columns: Tensor, rule: PickRows) -> Tensor:
    """Return the probabilities of some columns, one a row, at the rows' temperatures: (N,).

    At temperature 0 those of temperature 1. Not a number where logits are none.
    """
    temperature = torch.where(rule.temperature > 0, rule.temperature, 1.0).float()
    scaled = logits / temperature[:, None]
    return scaled.log_softmax(1).gather(1, columns[:, None])[:, 0].exp()


def by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function number by number; on the CPU to one row after the other."""
    if x.device.type != "cpu":
        return function(x)
    return torch.stack([function(row) for row in x])


def _filtered(scaled: Tensor, rule: PickRows) -> Tensor:
    """Set what top-k, top-p and min-p drop to minus infinity, as `filters.py` defines it."""
    num_columns = scaled.shape[1]
    ranked, order = scaled.sort(
        dim=1, descending=True, stable=True
    )  # equals stay ordered by column
    probs = by_row(torch.exp, ranked)
    top_k = torch.where(rule.top_k > 0, rule.top_k, num_columns)
    is_kept = torch.arange(num_columns, device=scaled.device) < top_k[:, None]
    units = torch.where(is_kept, (probs * _UNITS).round().long(), 0)
    reached = units.cumsum(1)
    mass = rule.top_p[:, None] * reached[:, -1:].double()
    # A token stays while those before it have not reached the mass; the best one always does.
    is_needed = ((reached - units).double() < mass) | (rule.top_p[:, None] >= 1)
    is_needed[:, 0] = True
    is_kept = is_kept & is_needed & (probs >= rule.min_p[:, None])
    dropped = torch.full_like(scaled, -torch.inf)
    return dropped.scatter(1, order, torch.where(is_kept, ranked, -torch.inf))


def _mixed(words: Tensor) -> Tensor:
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, places: int) -> Tensor:
    """Shift to the right as if words had no sign."""
    return (words >> places) & ((1 << (64 - places)) - 1)
