"""Weight matrices and cached keys and values of the torch backend.

In:  stored tensors and rows, on one device and in one float type.
Out: products in which a row's bits do not depend on the other rows (`TorchMatrix.times`).
Projections run in tiles of `TILE` rows, padded with zeros and each in memory of its own, so that
the library takes the same path whatever stands beside a row. Whether it keeps rows apart is checked
for every matrix at its first use; where it does not, rows go through it one by one.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.ops.blocks import Linear

TILE = 8
"""Rows of one matrix product."""


class TorchMatrix:
    """A weight matrix on the device."""

    __slots__ = ("tile", "values")

    def __init__(self, values: Tensor, tile: int | None = None) -> None:
        self.values = values  # (outputs, inputs)
        self.tile = tile
        """Rows of one product; None until the first use has tried."""

    @classmethod
    def join(cls, parts: Sequence["TorchMatrix"]) -> "TorchMatrix":
        """Put matrices under one another; the parts become views, so that nothing lies twice."""
        joined = cls(torch.cat([part.values for part in parts]))
        sizes = [len(part.values) for part in parts]
        for part, view in zip(parts, joined.values.split(sizes), strict=True):
            part.values = view
        return joined

    @property
    def num_outputs(self) -> int:
        """Rows of the matrix."""
        return len(self.values)

    @property
    def num_inputs(self) -> int:
        """Columns of the matrix."""
        return int(self.values.shape[1])

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return int(self.values.nbytes)

    def times(self, x: Tensor) -> Tensor:
        """Multiply every row as if it were alone: (N, inputs) → (N, outputs)."""
        if self.tile is None:
            self.tile = TILE if _is_batch_invariant(self.values) else 1
        products = [self._times_tile(tile) for tile in x.split(self.tile)]
        return products[0] if len(products) == 1 else torch.cat(products)

    def _times_tile(self, rows: Tensor) -> Tensor:
        # A fresh tile: libraries may choose their kernel by how memory is aligned.
        tile = rows.new_zeros(self.tile, rows.shape[1])
        tile[: len(rows)] = rows
        return F.linear(tile, self.values)[: len(rows)]


class TorchKVLayer:
    """Keys and values of one layer and sequence on the device."""

    __slots__ = ("keys", "values")

    def __init__(self, like: Tensor, num_kv_heads: int, key_dim: int, value_dim: int) -> None:
        self.keys = like.new_empty(num_kv_heads, 0, key_dim)  # (G, capacity, D)
        self.values = like.new_empty(num_kv_heads, 0, value_dim)

    @property
    def bytes_per_position(self) -> int:
        """Bytes that room for one more position takes."""
        num_numbers = self.keys.shape[2] + self.values.shape[2]
        return int(len(self.keys) * num_numbers * self.keys.itemsize)

    @property
    def num_bytes(self) -> int:
        """Bytes reserved so far."""
        return int(self.keys.nbytes + self.values.nbytes)

    def reserve(self, capacity: int, others: Sequence[Self] = ()) -> None:
        """Make room for `capacity` positions here and in `others`, keeping what is there."""
        for layer in (self, *others):
            layer.keys = _grown(layer.keys, capacity)
            layer.values = _grown(layer.values, capacity)

    def copy_from(self, other: Self, num_positions: int) -> None:
        """Hold the first `num_positions` of `other`, making room for them."""
        if num_positions > self.keys.shape[1]:
            self.reserve(num_positions)
        self.keys[:, :num_positions] = other.keys[:, :num_positions]
        self.values[:, :num_positions] = other.values[:, :num_positions]

    def write(self, position: int, keys: Tensor, values: Tensor) -> None:
        """Store (n, G, D) keys and values from `position` on."""
        stop = position + len(keys)
        self.keys[:, position:stop] = keys.transpose(0, 1)
        self.values[:, position:stop] = values.transpose(0, 1)


def joined_bias(linears: Sequence[Linear], device: torch.device) -> Tensor | None:
    """Return the bias of joined projections, zeros for those that have none."""
    if all(linear.bias is None for linear in linears):
        return None
    biases = [
        np.zeros(one.weight.num_outputs, np.float32) if one.bias is None else one.bias
        for one in linears
    ]
    return torch.tensor(np.concatenate(biases), device=device)


def _grown(held: Tensor, capacity: int) -> Tensor:
    grown = held.new_empty(held.shape[0], capacity, held.shape[2])
    grown[:, : held.shape[1]] = held
    return grown


def _is_batch_invariant(values: Tensor) -> bool:
    """Check that a row's product does not depend on its place in the tile or on its mates.

    Libraries choose kernels by shape, not by value, so one test with random rows settles a shape.
    """
    generator = torch.Generator(values.device).manual_seed(0)
    shape = (TILE, values.shape[1])
    x = torch.randn(shape, generator=generator, device=values.device).to(values.dtype)
    alone = torch.zeros_like(x)
    alone[TILE - 1] = x[0]
    expected = F.linear(x, values)
    turned = [(shift, F.linear(x.roll(shift, 0), values)) for shift in (1, TILE // 2)]
    is_alone_equal = _are_equal(F.linear(alone, values)[TILE - 1], expected[0])
    return is_alone_equal and all(
        _are_equal(result, expected.roll(shift, 0)) for shift, result in turned
    )


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Compare bit for bit, but let NaN equal NaN: damaged weights show when they are used."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
