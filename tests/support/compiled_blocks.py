"""Kernels compiled for a card that need not be there: Triton brings all it takes.

Layers of published shapes, without numbers in them, are run by a launcher that only compiles.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from headlong.models.rope import make_rope
from headlong.ops.blocks import Attention, GatedMlp, Layer, Linear, Norm
from headlong.ops.cuda.ops import CudaOps
from headlong.ops.cuda.packed_matrix import CHUNK, PackedMatrix, Packing
from headlong.ops.cuda.paged_blocks import DeviceRows
from headlong.ops.cuda.triton_paged_blocks import TritonPagedBlocks
from headlong.ops.torch.weights import TorchMatrix

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 232_448
"""Bytes a program may have on an H100 or H200."""

META = torch.device("meta")
_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float64: "*fp64",
    torch.uint8: "*u8",
}


class Sizes(NamedTuple):
    """The sizes of a model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int


SMALL = Sizes(576, 9, 3, 64, 1536)
LARGE = Sizes(4096, 32, 8, 128, 14336)
"""Those of SmolLM2-135M and of Llama 3 8B."""


@dataclass
class CompilingLauncher:
    """Compiles what it is to launch, each kernel and choice of constants once."""

    compiled: dict[Any, Any] = field(default_factory=dict)

    def __call__(
        self, kernel: Any, grid: Any, arguments: Any, constants: dict[str, Any], **options: int
    ) -> None:
        """Compile a kernel for these arguments."""
        constants = {**constants, "PDL": True}
        key = (kernel.__name__, str(sorted(constants.items())), str(sorted(options.items())))
        if key in self.compiled:
            return
        signature = dict(zip(kernel.arg_names, map(_type_of, arguments), strict=False))
        aligned = [i for i, one in enumerate(arguments) if _is_aligned(one)]
        source = ASTSource(
            kernel,
            signature=signature | dict.fromkeys(constants, "constexpr"),
            constexprs=constants,
            attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
        )
        told = {**options, "launch_pdl": True}
        self.compiled[key] = triton.compile(source, target=HOPPER, options=told)

    def names(self) -> set[str]:
        """Return the kernels that were compiled."""
        return {key[0] for key in self.compiled}


@dataclass
class EmptyModel:
    """Layers of a shape, without numbers, and the blocks that would run them."""

    kind: str
    sizes: Sizes = SMALL
    has_norms: bool = False
    reads_beside: bool = False
    launcher: CompilingLauncher = field(default_factory=CompilingLauncher)

    def __post_init__(self) -> None:
        self.ops = CudaOps(META, torch.bfloat16)
        self.blocks = TritonPagedBlocks(self.ops, launch=self.launcher)

    def linear(self, outputs: int, inputs: int) -> Linear:
        """Return a projection."""
        if self.kind == "bf16":
            return Linear(TorchMatrix(self._empty(outputs, inputs, dtype=torch.bfloat16)))
        packing = {"q4": Packing(4, 32, True), "q8": Packing(8, 32, False)}[self.kind]
        chunks = inputs // CHUNK
        levels = self._empty(chunks, outputs, 8 * packing.bits, dtype=torch.uint8)
        words = self._empty(chunks, 1 + packing.has_minimums, outputs, dtype=torch.int32)
        return Linear(PackedMatrix(packing, levels, words, torch.bfloat16))

    def norm(self, size: int) -> Norm:
        """Return a norm."""
        return Norm(np.ones(size, np.float32), 1e-5)

    def layer(self) -> Layer:
        """Return a layer."""
        hidden, heads, kv_heads, head_dim, inner = self.sizes
        width = hidden * (2 if self.reads_beside else 1)
        attention = Attention(
            self.norm(hidden),
            self.linear(heads * head_dim, width),
            self.linear(kv_heads * head_dim, width),
            self.linear(kv_heads * head_dim, width),
            self.linear(hidden, heads * head_dim),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rope=make_rope(head_dim, 1e4),
            scale=head_dim**-0.5,
            query_norm=self.norm(head_dim) if self.has_norms else None,
            key_norm=self.norm(head_dim) if self.has_norms else None,
            beside_norm=self.norm(hidden) if self.reads_beside else None,
        )
        gate, up = (self.linear(inner, hidden) for _ in range(2))
        return Layer(attention, GatedMlp(self.norm(hidden), gate, up, self.linear(hidden, inner)))

    def compile_qkv(self) -> None:
        """Compile the projections of one row."""
        x = self._empty(1, self.sizes.hidden, dtype=torch.bfloat16)
        self.blocks.qkv(x, self.layer().attention, x if self.reads_beside else None)

    def compile_noise(self) -> None:
        """Compile the noise that picks."""
        numbers = self._empty(4, dtype=torch.int64)
        for ids in (None, numbers):
            self.blocks.noise(numbers, numbers, 4, ids)

    def compile(self, num_rows: int, vocabulary: int = 4096) -> None:
        """Compile a pass over one layer, with embedding and LM head."""
        layer, head = self.layer(), self.linear(vocabulary, self.sizes.hidden)
        ids = self._empty(num_rows, dtype=torch.int32)
        rows = DeviceRows(ids, ids, ids, self._empty(8, 32, dtype=torch.int32))
        x = self.blocks.embed(head.weight, ids)
        (pages,) = self.blocks.make_pages([layer], 4)
        x = self.blocks.run_layer(x, layer, pages, rows, x if self.reads_beside else None)
        self.blocks.logits(self.blocks.norm(x, layer.mlp.norm), layer.mlp.norm, head)

    def _empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=META)


def _type_of(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return _TYPES[argument.dtype]
    return "i32" if isinstance(argument, int) else "fp32"


def _is_aligned(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) or (isinstance(argument, int) and argument % 16 == 0)
