"""The torch backend: the op set on tensors, float32 on the CPU, bfloat16 or float32 on CUDA.

Two ways of running the same blocks, chosen when the backend is made:
exact    a row's bits do not depend on other rows: projections in tiles of a fixed number of
         rows (`TorchMatrix.times`), all other maths row by row, attention row by row.
together all rows of a pass at once, for training and for writing answers, where rows may differ in
         the last bits with their batch; `ops/torch/sequences.py` reads whole sequences that way.
Attention and gated MLPs read fused matrices (q/k/v, gate/up), of which the specs' own are views.
"""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headlong.arrays import FloatArray, IntArray
from headlong.ops.backends import register_backend
from headlong.ops.block_by_block import BlockByBlock
from headlong.ops.blocks import (
    Attending,
    Attention,
    Channel,
    Experts,
    GatedDeltaNet,
    LatentAttention,
    Linear,
    Mamba2,
    Mixer,
    Norm,
    PerLayerInput,
    Rope,
    SharedAttention,
)
from headlong.ops.host_ops import HostOps
from headlong.ops.layer_state import LayerState
from headlong.ops.numpy.weights import round_to
from headlong.ops.op_set import Rows
from headlong.ops.torch.attention import HeadRows, attend_rows, write_rows
from headlong.ops.torch.delta import DeltaRule
from headlong.ops.torch.experts import experts_result, mlp_result, per_layer_result
from headlong.ops.torch.host import TorchHost
from headlong.ops.torch.latent import mix_latent
from headlong.ops.torch.mamba import StateSpace
from headlong.ops.torch.maths import Angles, RowMaths, make_row_maths
from headlong.ops.torch.recurrent import make_stepped_state, run_recurrence
from headlong.ops.torch.weights import TorchKVLayer, TorchMatrix, joined_bias
from headlong.weights.tensors import StoredTensor

_FORMATS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class TorchOps(BlockByBlock):
    """The op set in torch."""

    name = "torch"
    host: HostOps = TorchHost()

    def __init__(
        self,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        maths: RowMaths | None = None,
        *,
        is_exact: bool = True,
    ) -> None:
        has_cuda = torch.cuda.is_available()
        self.device = device or torch.device("cuda" if has_cuda else "cpu")
        is_cuda = self.device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if is_cuda else torch.float32)
        self.maths = maths or make_row_maths(compile=False)
        self._is_exact = is_exact
        self._like = torch.empty(0, dtype=self.dtype, device=self.device)
        # What was made of a spec: its vectors on the device, or a fused matrix with its bias.
        self._made: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        place = torch.cuda.get_device_name(self.device) if is_cuda else "CPU"
        self.note = f"torch {torch.__version__} on {place}, {_FORMATS.get(self.dtype, self.dtype)}"

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> TorchMatrix:
        """Unpack a stored tensor onto the device, rounded to the precision of `quant` if given."""
        values = tensor.to_float32()
        rounded = values if quant is None else round_to(values, quant)
        return TorchMatrix(torch.tensor(rounded).to(self.device, self.dtype))

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of a tensor on the device, whatever it is rounded to."""
        return int(np.prod(tensor.shape) * self.dtype.itemsize)

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format everything is unpacked to."""
        return _FORMATS.get(self.dtype, str(self.dtype))

    def finish_loading(self) -> None:
        """Do nothing: tensors are as large as they must be."""

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return an empty state on the device; recurrent ones are in float32."""
        if isinstance(mixer, Attending):
            return TorchKVLayer(self._like, mixer.num_kv_heads, mixer.head_dim, mixer.value_dim)
        if isinstance(mixer, LatentAttention):
            return TorchKVLayer(self._like, 1, mixer.rank + mixer.rotary_dim, mixer.rank)
        return make_stepped_state(mixer, self.device)

    def join(self, parts: Sequence[Any], axis: int = 0) -> Tensor:
        """Put arrays one after the other along an axis; rows that waited on the host come back."""
        if len(parts) == 1 and isinstance(parts[0], Tensor):
            return parts[0]
        return torch.cat([torch.as_tensor(p).to(self.device, self.dtype) for p in parts], axis)

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        """Put arrays of one shape beside each other along a new first axis."""
        return torch.stack(list(parts))

    def rows(self, x: Tensor, indices: Sequence[int]) -> Tensor:
        """Return the rows at these indices."""
        return x[torch.tensor(list(indices), dtype=torch.long, device=x.device)]

    def to_host(self, x: Tensor) -> FloatArray:
        """Return an array's numbers as float32 in numpy."""
        on_host: FloatArray = x.float().cpu().numpy()
        return on_host

    def embed(self, table: TorchMatrix, token_ids: IntArray | Tensor, scale: float = 1.0) -> Tensor:
        """Look up embedding rows: (N,) → (N, H)."""
        rows = table.values[torch.as_tensor(token_ids, device=self.device)]
        return rows if scale == 1.0 else rows * scale

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Scale to unit root mean square, times the learned weight: (N, …, H)."""
        weight = self.vector(norm, norm.weight)
        return self.by_row(lambda rows: self.maths.rms_norm(rows, weight, norm.eps), x)

    def project(self, x: Tensor, linear: Linear) -> Tensor:
        """Apply a projection to every row."""
        bias = None if linear.bias is None else self.vector(linear, linear.bias)
        return self._times(x, linear.weight, bias)

    def mix(
        self,
        x: Tensor,
        block: Mixer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: Tensor | None = None,
    ) -> Tensor:
        """Run one mixer: norm, projections, states, add."""
        if isinstance(block, Attending):
            return self._attention(x, block, states, rows, beside)
        if isinstance(block, LatentAttention):
            angles = self.angles(torch.tensor(rows.positions, device=self.device), block.rope)
            return mix_latent(self, x, block, states, rows, angles)
        return x + self.recurrence(block).result(
            self, x, lambda projected, step: run_recurrence(projected, states, rows, step)
        )

    def transform(self, x: Tensor, block: Channel, beside: Tensor | None = None) -> Tensor:
        """Run one channel part."""
        if isinstance(block, PerLayerInput):
            assert beside is not None
            return x + per_layer_result(self, x, block, beside)
        if isinstance(block, Experts):
            return x + experts_result(self, x, block)
        return x + mlp_result(self, x, block)

    def _attention(
        self,
        x: Tensor,
        block: Attending,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: Tensor | None = None,
    ) -> Tensor:
        """Norm, q/k/v, rotary, cache write, attend, project, add."""
        ahead = block.ahead if isinstance(block, SharedAttention) else 0
        angles = self.angles(torch.tensor(rows.positions + ahead, device=self.device), block.rope)
        heads = self.project_heads(x, block, angles, beside)
        if isinstance(block, Attention):
            write_rows(heads, states, rows)
            x = self.norm(x, block.norm) if block.adds_to_normed else x
        attended = attend_rows(heads.query, states, rows, block)
        return self.add_attended(x, attended, block, heads.gate)

    def residual_silu(self, x: Tensor, linear: Linear) -> Tensor:
        """x + silu(linear(x))."""
        return x + self.by_row(F.silu, self.project(x, linear))

    def angles(self, positions: Tensor, rope: Rope) -> Angles:
        """Return cosines and sines of rotary positions: (N,) → twice (N, D / 2)."""
        frequencies = self.vector(rope, rope.frequencies).double()
        turned = positions.double()[:, None] * frequencies[None]
        cos, sin = self.by_row(torch.cos, turned), self.by_row(torch.sin, turned)
        return (rope.amplitude * cos).float(), (rope.amplitude * sin).float()

    def project_heads(
        self, x: Tensor, block: Attending, angles: Angles, beside: Tensor | None = None
    ) -> HeadRows:
        """Norm, projections, norms of heads, rotary: all that attention reads of its rows."""
        normed = self.norm(x, block.norm)
        if isinstance(block, SharedAttention):
            query = self.project(normed, block.query).view(len(x), -1, block.head_dim)
            query = self.maths.rotate(self.norm(query, block.query_norm), *angles)
            return HeadRows(query, query[:, :0], query[:, :0], None)
        if block.beside_norm is not None:
            assert beside is not None
            normed = torch.cat([self.norm(beside, block.beside_norm), normed], -1)
        gates = () if block.gate is None else (block.gate,)
        heads = self.project_fused(normed, block, block.query, block.key, block.value, *gates)
        return self.cut_heads(heads, block, angles)

    def cut_heads(self, heads: Tensor, block: Attention, angles: Angles) -> HeadRows:
        """Cut what was projected into heads; norm and turn them."""
        num_rows = len(heads)
        key_size = block.num_kv_heads * block.head_dim
        sizes = [block.num_heads * block.head_dim, key_size, block.num_kv_heads * block.value_dim]
        query, key, value, gate = heads.split([*sizes, heads.shape[1] - sum(sizes)], dim=1)
        query, key = (part.reshape(num_rows, -1, block.head_dim) for part in (query, key))
        value, gate = (part.reshape(num_rows, -1, block.value_dim) for part in (value, gate))
        if block.query_norm is not None:
            query = self.norm(query, block.query_norm)
        if block.key_norm is not None:
            key = self.norm(key, block.key_norm)
        if block.value_norm is not None:
            value = self.norm(value, block.value_norm)
        query, key = (self.maths.rotate(part, *angles) for part in (query, key))
        return HeadRows(query, key, value, None if block.gate is None else gate)

    def add_attended(
        self, x: Tensor, attended: Tensor, block: Attending, gate: Tensor | None
    ) -> Tensor:
        """Gate and project what was attended to, (N, heads * D), and add it to x: (N, H)."""
        if gate is not None:
            attended = attended * self.by_row(torch.sigmoid, gate).reshape(attended.shape)
        result = self.project(attended, block.output)
        norm = block.output_norm
        return x + (result if norm is None else self.norm(result, norm))

    def project_fused(self, x: Tensor, spec: object, *linears: Linear) -> Tensor:
        """Apply a block's projections of the same input: (N, inputs) → (N, all outputs)."""
        return self._times(x, *self._fused(spec, *linears))

    def _times(self, x: Tensor, matrix: TorchMatrix, bias: Tensor | None) -> Tensor:
        if not self._is_exact:
            return F.linear(x, matrix.values, None if bias is None else bias.to(self.dtype))
        y = matrix.times(x)
        return y if bias is None else (y.float() + bias).to(self.dtype)

    def by_row(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a function to all rows, in exact mode to one after the other.

        Kernels compute the last numbers of an array otherwise than the others, and sum in an order
        that depends on the number of rows.
        """
        parts = self.apart(x)
        return function(x) if len(parts) == 1 else torch.cat([function(row) for row in parts])

    def apart(self, x: Tensor) -> Sequence[Tensor]:
        """Cut rows into what is computed together: in exact mode into single rows."""
        return x.split(1) if self._is_exact else (x,)

    def vector(self, spec: object, values: FloatArray) -> Tensor:
        """Return the one vector of a norm, a projection or a rope on the device."""
        found = self._made.get(spec)
        if found is None:
            found = self._made[spec] = torch.tensor(values, dtype=torch.float32, device=self.device)
        return found

    def _fused(self, spec: object, *linears: Linear) -> tuple[TorchMatrix, Tensor | None]:
        """Return a block's projections of the same input as one matrix and one bias."""
        found = self._made.get(spec)
        if found is None:
            matrix = TorchMatrix.join([linear.weight for linear in linears])
            found = self._made[spec] = (matrix, joined_bias(linears, self.device))
        fused: tuple[TorchMatrix, Tensor | None] = found
        return fused

    def recurrence(self, block: GatedDeltaNet | Mamba2) -> DeltaRule | StateSpace:
        """Return the maths of a recurrent mixer."""
        # Only the numbers are kept: what holds the block would keep its own entry alive.
        if isinstance(block, Mamba2):
            if block not in self._made:
                self._made[block] = StateSpace.numbers(block, self.device)
            return StateSpace(block, *self._made[block])
        if block not in self._made:
            self._made[block] = DeltaRule.numbers(block, self.device)
        return DeltaRule(block, *self._made[block])


@register_backend("torch")
def make_ops(threads: int | None = None) -> TorchOps:
    """Return the torch backend on the GPU, if there is one; threads are torch's own business."""
    return TorchOps()
