"""The paged blocks in plain torch, row by row: the truth beside the Triton kernels.

On the CPU every number equals that of the same block over a cache without pages, bit for bit, since
both call the same functions of `TorchOps`. Reads positions on the host: no graph can capture it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headlong.ops.blocks import Attention, GatedMlp, Layer, Linear, Matrix, Norm
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, DeviceRows, LayerByLayer, PagedKeys
from headlong.ops.torch.attention import attend_row
from headlong.ops.torch.experts import mlp_result

if TYPE_CHECKING:
    from headlong.ops.torch.ops import TorchOps


class PlainPagedBlocks(LayerByLayer):
    """The paged blocks, made of the torch op set's functions."""

    note = "plain torch"
    replays = False

    def __init__(self, ops: "TorchOps") -> None:
        self._ops = ops

    def make_pages(self, layers: Sequence[Layer], num_pages: int) -> tuple[PagedKeys, ...]:
        """Return room for keys and values of every layer, zeroed."""
        ops = self._ops
        return tuple(make_paged_keys(one, num_pages, ops.dtype, ops.device) for one in layers)

    def embed(self, table: Matrix, token_ids: Tensor, scale: float = 1.0) -> Tensor:
        """Look up embedding rows."""
        return self._ops.embed(table, token_ids.long(), scale)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Apply a norm to every row."""
        return self._ops.norm(x, norm)

    def project(self, x: Tensor, linear: Linear) -> Tensor:
        """Apply a projection to every row."""
        return self._ops.project(x, linear)

    def logits(self, x: Tensor, norm: Norm | None, linear: Linear) -> Tensor:
        """Norm, if there is one, and LM head."""
        normed = x if norm is None else self._ops.norm(x, norm)
        return self._ops.project(normed, linear).float()

    def qkv(self, x: Tensor, block: Attention, beside: Tensor | None = None) -> Tensor:
        """Norm and the three projections side by side."""
        normed = self._ops.norm(x, block.norm)
        if block.beside_norm is not None:
            assert beside is not None
            normed = torch.cat([self._ops.norm(beside, block.beside_norm), normed], -1)
        return self._ops.project_fused(normed, block, block.query, block.key, block.value)

    def attend(self, qkv: Tensor, block: Attention, pages: PagedKeys, rows: DeviceRows) -> Tensor:
        """Turn queries and keys, write keys and values to their pages, attend."""
        angles = self._ops.angles(rows.positions, block.rope)
        heads = self._ops.cut_heads(qkv, block, angles)
        places = list(zip(rows.slots.tolist(), rows.positions.tolist(), strict=True))
        for row, (slot, position) in enumerate(places):
            if slot >= 0:
                page = rows.page_table[slot, position // PAGE_SIZE]
                pages.keys[page, position % PAGE_SIZE] = heads.key[row]
                pages.values[page, position % PAGE_SIZE] = heads.value[row]
        attended = qkv.new_zeros(len(qkv), block.num_heads * block.head_dim)
        for row, (slot, position) in enumerate(places):
            if slot >= 0:
                own = rows.page_table[slot, : position // PAGE_SIZE + 1].long()
                keys, values = (_in_order(part, own) for part in pages)
                attended[row] = attend_row(heads.query[row], keys, values, position, block)
        return attended

    def output(self, attended: Tensor, block: Attention, residual: Tensor) -> Tensor:
        """Project what was attended to and add it."""
        return self._ops.add_attended(residual, attended, block, None)

    def mlp(self, x: Tensor, block: GatedMlp) -> Tensor:
        """x plus the dense MLP of it."""
        return x + mlp_result(self._ops, x, block)


def make_paged_keys(
    layer: Layer, num_pages: int, dtype: torch.dtype, device: torch.device
) -> PagedKeys:
    """Return room for one layer's keys and values, zeroed."""
    block = layer.attention
    shape = (num_pages, PAGE_SIZE, block.num_kv_heads, block.head_dim)
    return PagedKeys(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))


def bytes_per_position(layer: Layer, dtype: torch.dtype) -> int:
    """Return the bytes that one layer's key and value of one position take."""
    block = layer.attention
    return int(2 * block.num_kv_heads * block.head_dim * dtype.itemsize)


def _in_order(part: Tensor, pages: Tensor) -> Tensor:
    """Return what lies in some pages, in their order: (kv_heads, positions, D)."""
    return part[pages].flatten(0, 1).transpose(0, 1)
