"""Random models of published shapes on a GPU, to measure and compare kernels with."""

from dataclasses import dataclass

import numpy as np
import torch

from headlong.models.rope import make_rope
from headlong.ops.blocks import Attention, GatedMlp, Layer, Linear, Norm
from headlong.ops.cuda.ops import CudaOps
from headlong.ops.cuda.packed_matrix import PackedMatrix, Packing
from headlong.ops.cuda.paged_blocks import PAGE_SIZE, DeviceRows, PagedKeys
from headlong.ops.torch.weights import TorchMatrix

PACKINGS = {"q4": Packing(4, 32, True), "q8": Packing(8, 32, False), "q6": Packing(8, 16, False)}
"""As Q4_1 and Q4_K are kept, as Q8_0, and as Q6_K."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int


SMALL = Shape("135M", 30, 576, 9, 3, 64, 1536, 49152)
LARGE = Shape("8B", 32, 4096, 32, 8, 128, 14336, 128256)
TINY = Shape("tiny", 7, 64, 4, 2, 16, 64, 96)
"""Of no model: to try a bench where there is no card."""


class Model:
    """A random model of a shape, its weights in one format."""

    def __init__(self, ops: CudaOps, shape: Shape, kind: str, layers: int | None = None) -> None:
        self.ops, self.shape, self.kind = ops, shape, kind
        self.layers = [self._layer() for _ in range(layers or shape.layers)]
        self.final_norm = self._norm(shape.hidden)
        self.lm_head = self._linear(shape.vocabulary, shape.hidden)
        weights = [one.weight for layer in self.layers for one in layer.linears]
        self.num_bytes = sum(one.num_bytes for one in (*weights, self.lm_head.weight))
        self.num_numbers = sum(
            one.num_outputs * one.num_inputs for one in (*weights, self.lm_head.weight)
        )

    def _layer(self) -> Layer:
        s = self.shape
        attention = Attention(
            self._norm(s.hidden),
            self._linear(s.heads * s.head_dim, s.hidden),
            self._linear(s.kv_heads * s.head_dim, s.hidden),
            self._linear(s.kv_heads * s.head_dim, s.hidden),
            self._linear(s.hidden, s.heads * s.head_dim),
            num_heads=s.heads,
            num_kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            rope=make_rope(s.head_dim, 1e4),
            scale=s.head_dim**-0.5,
        )
        gate, up = self._linear(s.inner, s.hidden), self._linear(s.inner, s.hidden)
        mlp = GatedMlp(self._norm(s.hidden), gate, up, self._linear(s.hidden, s.inner))
        return Layer(attention, mlp)

    def _norm(self, size: int) -> Norm:
        weight = 1 + np.random.default_rng(size).standard_normal(size) / 10
        return Norm(weight.astype(np.float32), 1e-5)

    def _linear(self, outputs: int, inputs: int) -> Linear:
        device, dtype = self.ops.device, self.ops.dtype
        if self.kind not in PACKINGS:
            values = torch.randn(outputs, inputs, device=device, dtype=dtype)
            return Linear(TorchMatrix(values.mul_(inputs**-0.5)))
        packing = PACKINGS[self.kind]
        step = inputs**-0.5 / 2 ** (packing.bits - 2)
        levels = torch.randint(
            256, (inputs // 64, outputs, 8 * packing.bits), device=device, dtype=torch.uint8
        )
        count = 64 // packing.group
        halves = torch.rand(inputs // 64, outputs, count, device=device) * step
        if packing.has_minimums:
            halves = torch.cat([halves, -halves * 2 ** (packing.bits - 1)], -1)
        words = halves.half().view(torch.int32).transpose(1, 2).contiguous()
        return Linear(PackedMatrix(packing, levels, words, dtype))


class Pass:
    """Passes over rows of some slots, and the pages they write to."""

    def __init__(self, model: Model, slots: int, capacity: int) -> None:
        self.model, self.ops = model, model.ops
        pages = -(-capacity // PAGE_SIZE)
        order = torch.randperm(slots * pages, generator=torch.Generator().manual_seed(1)) + 1
        self.table = order.view(slots, pages).int().to(self.ops.device)
        num_pages = slots * pages + 1
        self.pages: tuple[PagedKeys, ...] = self.ops.paged.make_pages(model.layers, num_pages)

    def rows(self, slots: list[int], positions: list[int]) -> DeviceRows:
        """Return rows, whose tokens are a function of slot and position."""
        ids = [(7919 * p + 104729 * max(s, 0)) % self.model.shape.vocabulary for s, p in
               zip(slots, positions, strict=True)]  # fmt: skip
        columns = [
            torch.tensor(one, dtype=torch.int32).to(self.ops.device)
            for one in (ids, positions, slots)
        ]
        return DeviceRows(columns[0], columns[1], columns[2], self.table)

    def run(self, rows: DeviceRows, *, with_logits: bool = False) -> torch.Tensor:
        """Run the layers, and the LM head where asked for."""
        paged, model = self.ops.paged, self.model
        x = paged.embed(model.lm_head.weight, rows.token_ids, 1.0)
        x, _ = paged.run_layers(x, model.layers, self.pages, rows)
        return paged.logits(x, model.final_norm, model.lm_head) if with_logits else x
