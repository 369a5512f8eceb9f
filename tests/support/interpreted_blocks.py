"""Layers on Triton's kernels, interpreted, against plain torch: run in a process of its own."""

from typing import Any

import numpy as np
import torch

from headlong.models.rope import make_rope
from headlong.ops.blocks import Activation, Attention, GatedMlp, Layer, Linear, Norm
from headlong.ops.cuda.ops import CudaOps
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, DeviceRows
from headlong.ops.cuda.triton_attention_kernels import turn_kernel
from headlong.ops.cuda.triton_paged_blocks import TritonPagedBlocks
from native_parts import random, stored

HIDDEN = 64
TABLE = torch.tensor([[5, 2, 7], [1, 6, 3]], dtype=torch.int32)


class Parts:
    """Makes random layers; what is set differs from a plain Llama's."""

    def __init__(self, ops: CudaOps, kind: str = "F32") -> None:
        self.ops, self.kind = ops, kind

    def linear(self, seed: int, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
        """Return a random projection that keeps magnitudes."""
        values = random(seed, outputs, inputs) / np.float32(inputs**0.5)
        matrix = self.ops.matrix(stored(self.kind if inputs % 64 == 0 else "F32", values))
        return Linear(matrix, random(seed + 1, outputs) if bias else None)

    def norm(self, seed: int, size: int = HIDDEN) -> Norm:
        """Return a random norm."""
        return Norm(np.float32(1) + random(seed, size) / np.float32(10), 1e-5)

    def attention(self, heads: int, head_dim: int, *, extras: bool, beside: bool) -> Attention:
        """Return attention with two key heads; `extras` are what some families have."""
        width = HIDDEN * (2 if beside else 1)
        return Attention(
            self.norm(1),
            self.linear(2, heads * head_dim, width, bias=extras),
            self.linear(4, 2 * head_dim, width),
            self.linear(6, 2 * head_dim, width),
            self.linear(8, HIDDEN, heads * head_dim, bias=extras),
            num_heads=heads,
            num_kv_heads=2,
            head_dim=head_dim,
            rope=make_rope(head_dim, 1e4),
            scale=head_dim**-0.5,
            query_norm=self.norm(10, head_dim) if extras else None,
            key_norm=self.norm(11, head_dim) if extras else None,
            beside_norm=self.norm(12) if beside else None,
            window=40 if extras else None,
            output_norm=self.norm(13) if extras else None,
            adds_to_normed=beside,
        )

    def layer(
        self, *, heads: int = 4, head_dim: int = 16, extras: bool = False, beside: bool = False
    ) -> Layer:
        """Return a layer."""
        activation: Activation = "gelu_tanh" if extras else "silu"
        mlp = GatedMlp(
            self.norm(14),
            self.linear(15, 96, HIDDEN),
            self.linear(17, 96, HIDDEN),
            self.linear(19, HIDDEN, 96),
            activation,
            self.norm(21) if extras else None,
        )
        return Layer(self.attention(heads, head_dim, extras=extras, beside=beside), mlp)


def rows_of(spans: list[tuple[int, range]]) -> DeviceRows:
    """Return rows of some slots."""
    slots = [slot for slot, positions in spans for _ in positions]
    positions = [position for _, span in spans for position in span]
    ids = [7 * position + 11 for position in positions]
    columns = [torch.tensor(one, dtype=torch.int32) for one in (ids, positions, slots)]
    return DeviceRows(columns[0], columns[1], columns[2], TABLE)


def check(layer: Layer, ops: CudaOps) -> None:
    """Compare many rows, then few behind them, and the pages they wrote."""
    kernels, plain = TritonPagedBlocks(ops), ops.paged
    both = [(blocks, blocks.make_pages([layer], 8)[0]) for blocks in (kernels, plain)]
    many = [(0, range(121, 136)), (1, range(2))]
    few = [(0, range(136, 138)), (1, range(2, 3)), (-1, range(1))]
    for spans in (many, few):
        rows = rows_of(spans)
        count = len(rows.positions)
        # As columns of something wider: kernels must not take them for rows of their own.
        x, beside = torch.tensor(random(count, count, 2 * HIDDEN)).split(HIDDEN, 1)
        found, wanted = (blocks.run_layer(x, layer, pages, rows, beside) for blocks, pages in both)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    for ours, theirs in zip(both[0][1], both[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def check_ends(ops: CudaOps, kind: str) -> None:
    """Compare embeddings, logits, projections and norms."""
    kernels, plain, parts = TritonPagedBlocks(ops), ops.paged, Parts(ops, kind)
    table, norm = parts.linear(1, 90, HIDDEN), parts.norm(3)
    ids = torch.tensor([3, 89, 0, 3], dtype=torch.int32)
    x = plain.embed(table.weight, ids, 1.5)
    assert torch.equal(x, kernels.embed(table.weight, ids, 1.5))
    found, wanted = (
        [
            blocks.norm(x, norm),
            blocks.project(x, table),
            blocks.logits(x, norm, table),
            blocks.logits(x, None, table),
        ]
        for blocks in (kernels, plain)
    )
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


def check_noise(ops: CudaOps) -> None:
    """Compare noise, of columns that are tokens and of others, from numbers that lie apart."""
    kernels, plain = TritonPagedBlocks(ops), ops.paged
    numbers = torch.randint(-(2**62), 2**62, (3, 5), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[0, 9], [513, 9], [2**30, 9]])[:, 0]
    for ids in (None, torch.arange(700) * 181):
        found, wanted = (one.noise(numbers[:, 2], positions, 700, ids) for one in (kernels, plain))
        torch.testing.assert_close(found, wanted, atol=0, rtol=1e-14)


def check_rows_that_fill_up(ops: CudaOps) -> None:
    """Turn rows without a slot that stand behind all angles: a card reads foreign memory there."""
    turned: list[torch.Tensor] = []

    def watch(kernel: Any, grid: Any, arguments: Any, constants: Any, **options: int) -> None:
        kernel[grid](*arguments, **constants, PDL=False, **options)
        if kernel is turn_kernel:
            turned.append(arguments[1])

    blocks, block = TritonPagedBlocks(ops, launch=watch), Parts(ops).layer(extras=True).attention
    capacity = TABLE.shape[1] * PAGE_SIZE
    angles = torch.full((2, 4 * capacity, block.head_dim // 2), torch.nan)
    angles[:, :capacity] = 1
    kept = (block.rope, *(part[:capacity] for part in angles))
    blocks._attention._turns[id(block.rope), capacity] = kept
    rows = rows_of([(0, range(2)), (-1, range(capacity + 7, capacity + 9))])
    width = (block.num_heads + 2 * block.num_kv_heads) * block.head_dim
    pages = blocks.make_pages([Parts(ops).layer(extras=True)], 8)[0]
    blocks.attend(torch.tensor(random(3, 4, width)), block, pages, rows)
    assert turned[0].isfinite().all()


def main() -> None:
    """Check layers of all kinds."""
    torch.set_num_threads(1)
    ops = CudaOps(torch.device("cpu"))
    check_rows_that_fill_up(ops)
    check(Parts(ops).layer(extras=True), ops)
    check(Parts(ops, "Q4_1").layer(beside=True), ops)
    check(Parts(ops).layer(heads=6, head_dim=24), ops)  # neither a power of two
    for kind in ("Q4_0", "Q5_1", "Q8_0"):
        check_ends(ops, kind)
    check_noise(ops)
