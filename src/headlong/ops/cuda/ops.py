"""The CUDA backend: torch's op set over weights in 16, 8 or 4 bits, and blocks for whole graphs.

Everything of `TorchOps` works on it: architectures that have no kernels of their own run there.
`paged` are the blocks that whole passes are captured of (`ops/cuda/paged_blocks.py`).
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlong.arrays import ByteArray, FloatArray, IntArray
from headlong.errors import BackendError
from headlong.ops.blocks import Linear
from headlong.ops.cuda.packed_matrix import pack, packing_for
from headlong.ops.cuda.paged_blocks import PagedBlocks, format_of
from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks
from headlong.ops.torch.ops import TorchOps
from headlong.ops.torch.weights import TorchMatrix, joined_bias
from headlong.weights.tensors import StoredTensor


class CudaOps(TorchOps):
    """The op set on a GPU; on the CPU the same in plain torch, for tests."""

    name = "cuda"

    def __init__(
        self, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(device, dtype)
        self.paged = self._make_paged_blocks()
        self.note = f"{self.note}, {self.paged.note}"

    def _make_paged_blocks(self) -> PagedBlocks:
        """Return kernels where there is a GPU for them, plain torch elsewhere."""
        if self.device.type == "cuda" and find_spec("triton") is not None:
            module = import_module("headlong.ops.cuda.triton_paged_blocks")
            blocks: PagedBlocks = module.TritonPagedBlocks(self)
            return blocks
        return PlainPagedBlocks(self)

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> Any:
        """Pack a stored tensor: levels of 4 or 8 bits as they are, all else in 16 bits."""
        try:
            if packing_for(tensor, quant) is None:
                return super().matrix(tensor, quant)
            return pack(tensor, quant, self._place, self.dtype)
        except torch.OutOfMemoryError as error:
            problem = f"The GPU's memory is full at {tensor.name}, {tensor.shape}."
            remedy = "End what else uses it, take a smaller model, or pack it (quant='q4')."
            raise BackendError(problem, remedy) from error

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of a tensor on the device."""
        packing = packing_for(tensor, quant)
        if packing is None:
            return super().matrix_bytes(tensor, quant)
        return packing.num_bytes(*tensor.shape)

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format a tensor is kept in."""
        packing = packing_for(tensor, quant)
        return super().matrix_format(tensor, quant) if packing is None else packing.name

    def free_bytes(self) -> int:
        """Return the bytes of the card that nothing uses."""
        if self.device.type != "cuda":
            return sys.maxsize
        return int(torch.cuda.mem_get_info(self.device)[0])

    def embed(self, table: Any, token_ids: IntArray | Tensor, scale: float = 1.0) -> Tensor:
        """Look up embedding rows: (N,) → (N, H)."""
        if isinstance(table, TorchMatrix):
            return super().embed(table, token_ids, scale)
        rows: Tensor = table.rows(torch.as_tensor(token_ids, device=self.device))
        return rows if scale == 1.0 else rows * scale

    def project_fused(self, x: Tensor, spec: object, *linears: Linear) -> Tensor:
        """Apply a block's projections of the same input: (N, inputs) → (N, all outputs)."""
        runs = [self._times(x, matrix, bias) for matrix, bias in self.fused_runs(spec, *linears)]
        return runs[0] if len(runs) == 1 else torch.cat(runs, 1)

    def fused_runs(self, spec: object, *linears: Linear) -> list[tuple[Any, Tensor | None]]:
        """Return projections of the same input as few matrices: neighbours of one format joined."""
        found = self._made.get(spec)
        if found is None:
            found = self._made[spec] = self._join_runs(linears)
        runs: list[tuple[Any, Tensor | None]] = found
        return runs

    def _join_runs(self, linears: tuple[Linear, ...]) -> list[tuple[Any, Tensor | None]]:
        runs: list[list[Linear]] = []
        for linear in linears:
            if runs and format_of(runs[-1][0].weight) == format_of(linear.weight):
                runs[-1].append(linear)
            else:
                runs.append([linear])
        return [(_joined(run), joined_bias(run, self.device)) for run in runs]

    def _place(self, part: FloatArray | ByteArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(part)).to(self.device)


def _joined(run: list[Linear]) -> Any:
    matrices = [linear.weight for linear in run]
    if len(matrices) == 1:
        return matrices[0]
    return type(matrices[0]).join(matrices)
