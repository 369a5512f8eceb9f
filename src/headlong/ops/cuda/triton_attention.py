"""Attention over pages with Triton kernels: which one, and its arguments.

In:  queries, keys and values of a pass's rows as they were projected. Out: what they attended to.
Rows that are too few to fill the card share their keys among programs; others do not.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
from torch import Tensor

from headlong.ops.blocks import Attention, Rope
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, DeviceRows, PagedKeys
from headlong.ops.cuda.triton_apart_kernel import attend_apart_kernel
from headlong.ops.cuda.triton_attention_kernels import attend_kernel, turn_kernel
from headlong.ops.cuda.triton_launch import Launch
from headlong.ops.cuda.triton_tiles import KEY_BLOCK, MOST_MATES, Tiles

if TYPE_CHECKING:
    from headlong.ops.cuda.ops import CudaOps

_LOG2_E = 1.4426950408889634
_UNBOUNDED = 1 << 30
_MOST_COUNTERS = 1 << 14


class _Call(NamedTuple):
    """What attends, and the arguments all its kernels have."""

    block: Attention
    pages: PagedKeys
    out: Tensor
    where: tuple[Tensor, Tensor, Tensor, int]
    """Positions, slots, page table and the distance between its rows."""
    scales: tuple[float, int]
    """What scores are multiplied with, and the window."""
    angles: tuple[Tensor, Tensor]

    @property
    def members(self) -> int:
        """Queries that share a key head, rounded up."""
        return int(triton.next_power_of_2(self.block.num_heads // self.block.num_kv_heads))

    @property
    def warps(self) -> int:
        """Warps of a program: keys of wide heads do not fit into the registers of four."""
        return 4 if self.block.head_dim <= 64 else 8

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of heads and pages."""
        return {
            "HEADS": self.block.num_heads,
            "KV_HEADS": self.block.num_kv_heads,
            "HEAD_DIM": self.block.head_dim,
            "WIDTH": max(triton.next_power_of_2(self.block.head_dim), 16),
            "PAGE": PAGE_SIZE,
        }


class PagedAttention:
    """Attention of all layers of a model."""

    def __init__(self, ops: "CudaOps", tiles: Tiles, launch: Launch) -> None:
        self._ops, self.tiles, self.launch = ops, tiles, launch
        self._counters = torch.zeros(_MOST_COUNTERS, dtype=torch.int32, device=ops.device)
        self._turns: dict[tuple[int, int], tuple[Rope, Tensor, Tensor]] = {}

    def attend(self, qkv: Tensor, block: Attention, pages: PagedKeys, rows: DeviceRows) -> Tensor:
        """Turn queries and keys, write keys and values to their pages, attend."""
        qkv = qkv.contiguous()
        head_dim, table = block.head_dim, rows.page_table
        cosines, sines = self._angles(block.rope, table.shape[1] * PAGE_SIZE)
        out = qkv.new_empty(len(qkv), block.num_heads * head_dim)
        where = (rows.positions, rows.slots, table, table.stride(0))
        window = _UNBOUNDED if block.window is None else block.window
        scales = (block.scale * _LOG2_E, window)
        call = _Call(block, pages, out, where, scales, (cosines, sines))
        num_blocks = triton.cdiv(table.shape[1] * PAGE_SIZE, KEY_BLOCK)
        shares = self.tiles.shares(len(qkv) * block.num_kv_heads, num_blocks)
        if shares > 1 and block.query_norm is None and len(qkv) <= MOST_MATES:
            self._attend_apart(qkv, call, num_blocks, shares, MOST_MATES)
            return out
        queries = self._turned(qkv, call)
        if shares > 1:
            self._attend_apart(queries, call, num_blocks, shares, 0)
        else:
            self._attend_together(queries, call)
        return out

    def _turned(self, qkv: Tensor, call: _Call) -> Tensor:
        """Turn queries and keys; keys and values go to their pages."""
        block = call.block
        queries = torch.empty_like(call.out)
        gains = [
            call.angles[0] if norm is None else self._ops.vector(norm, norm.weight)
            for norm in (block.query_norm, block.key_norm)
        ]
        eps = 0.0 if block.query_norm is None else block.query_norm.eps
        self.launch(
            turn_kernel,
            (len(qkv), block.num_heads + 2 * block.num_kv_heads),
            (qkv, queries, *call.pages, *gains, eps, *call.angles, *call.where),
            call.sizes
            | {"HALF": call.angles[0].shape[1], "HAS_NORMS": block.query_norm is not None},
            num_warps=1,
        )
        return queries

    def _attend_apart(
        self, source: Tensor, call: _Call, num_blocks: int, shares: int, mates: int
    ) -> None:
        """Share each row's keys among programs."""
        block, num_rows = call.block, len(source)
        rest = (*call.angles, *call.where, *call.scales)
        places = num_rows * block.num_heads * num_blocks
        partial, heights = (
            source.new_empty(places, size, dtype=torch.float32) for size in (call.sizes["WIDTH"], 2)
        )
        self.launch(
            attend_apart_kernel,
            (num_rows, block.num_kv_heads, shares),
            (source, *call.pages, call.out, partial, heights, self._counters, *rest),
            call.sizes
            | {"MEMBERS": max(call.members, 16), "HALF": call.angles[0].shape[1]}
            | {"BLOCK": KEY_BLOCK, "BLOCKS": num_blocks, "SHARES": shares, "MATES": mates},
            num_warps=call.warps,
            num_stages=1,
        )

    def _attend_together(self, queries: Tensor, call: _Call) -> None:
        """Let each program attend from some rows."""
        together = self.tiles.rows_together(len(queries), call.members)
        *where, stride = call.where
        self.launch(
            attend_kernel,
            (triton.cdiv(len(queries), together), call.block.num_kv_heads),
            (queries, *call.pages, call.out, *where, len(queries), stride, *call.scales),
            call.sizes | {"MEMBERS": call.members, "BLOCK": KEY_BLOCK, "TILE": together},
            num_warps=call.warps,
            num_stages=1 if call.sizes["WIDTH"] > 128 else 2,
        )

    def _angles(self, rope: Rope, capacity: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of all positions of a slot: (capacity, R / 2) each."""
        key = (id(rope), capacity)
        if key not in self._turns:
            positions = torch.arange(capacity, device=self._ops.device).double()
            frequencies = torch.tensor(rope.frequencies, device=self._ops.device).double()
            turned = positions[:, None] * frequencies[None]
            cos, sin = (rope.amplitude * f(turned) for f in (torch.cos, torch.sin))
            self._turns[key] = (rope, cos.float(), sin.float())
        _, cosines, sines = self._turns[key]
        return cosines, sines
