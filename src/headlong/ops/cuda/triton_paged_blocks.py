"""The paged blocks as Triton kernels: five to seven launches a layer, ready to be captured.

In:  the op set whose weights these are. Out: what `plain_paged_blocks` gives, up to rounding; and a
row's bits are the same whatever the number of rows, in a graph or not, in chunks or row by row.
Weights are read ahead while the kernel before still runs (programmatic dependent launch), where
the card can do that. All passes run on one stream: programs that share a row's keys count how many
of them are done in one place.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
from torch import Tensor

from headlong.ops.blocks import Attention, GatedMlp, Layer, Linear, Matrix, Norm
from headlong.ops.cuda.packed_matrix import PackedMatrix
from headlong.ops.cuda.paged_blocks import DeviceRows, LayerByLayer, PagedKeys
from headlong.ops.cuda.plain_paged_blocks import make_paged_keys
from headlong.ops.cuda.triton_attention import PagedAttention
from headlong.ops.cuda.triton_launch import Launch, can_overlap, make_launcher
from headlong.ops.cuda.triton_noise import noise_kernel
from headlong.ops.cuda.triton_row_maths import embed_kernel, norm_kernel
from headlong.ops.cuda.triton_rows_kernel import rows_kernel
from headlong.ops.cuda.triton_tiles import FEW_ROWS, Tiles, Weights
from headlong.ops.cuda.triton_tiles_kernel import scale_kernel, tiles_kernel

if TYPE_CHECKING:
    from headlong.ops.cuda.ops import CudaOps

_NOISE_BLOCK = 512
_GATES = {"silu": 1, "gelu_tanh": 2}


class _Product(NamedTuple):
    """A product and what belongs to it."""

    matrix: Matrix
    bias: Tensor | None = None
    gains: Tensor | None = None
    """Weights of the norm before it, one after the other where there are two inputs."""
    eps: float = 0.0
    beside: Tensor | None = None
    gate: int = 0
    """The activation of a gated product; 0 for one that is none."""
    residual: Tensor | None = None


class TritonPagedBlocks(LayerByLayer):
    """The paged blocks, one or two kernels each."""

    replays = True

    def __init__(
        self, ops: "CudaOps", tiles: Tiles | None = None, launch: Launch | None = None
    ) -> None:
        self._ops = ops
        self.tiles = tiles or Tiles()
        is_cuda = ops.device.type == "cuda"
        self.note = "Triton kernels" if is_cuda else "Triton kernels, interpreted"
        self._overlaps = launch is None and can_overlap(ops.device)
        self._launch = launch or make_launcher(overlaps=self._overlaps)
        self._attention = PagedAttention(ops, self.tiles, self._launch)
        self._gains: WeakKeyDictionary[Attention, Tensor] = WeakKeyDictionary()

    @property
    def overlaps(self) -> bool:
        """Whether a kernel begins while the one before still runs; to be set."""
        return self._overlaps

    @overlaps.setter
    def overlaps(self, overlaps: bool) -> None:
        """Let launches overlap from now on, or not."""
        self._overlaps = overlaps
        self._launch = self._attention.launch = make_launcher(overlaps=overlaps)

    def make_pages(self, layers: Sequence[Layer], num_pages: int) -> tuple[PagedKeys, ...]:
        """Return room for keys and values of every layer, zeroed."""
        ops = self._ops
        return tuple(make_paged_keys(one, num_pages, ops.dtype, ops.device) for one in layers)

    def embed(self, table: Matrix, token_ids: Tensor, scale: float = 1.0) -> Tensor:
        """Look up embedding rows."""
        weights, words, stride, form = _laid_out(table)
        width = table.num_inputs
        out = torch.empty(len(token_ids), width, dtype=self._ops.dtype, device=self._ops.device)
        self._launch(
            embed_kernel,
            (len(token_ids),),
            (token_ids, weights, words, out, scale, stride),
            {"K": width, "WIDTH": triton.next_power_of_2(width), "FORM": form},
        )
        return out

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Apply a norm to every row."""
        return self._normed(x, norm, None)

    def project(self, x: Tensor, linear: Linear) -> Tensor:
        """Apply a projection to every row."""
        out = x.new_empty(len(x), linear.weight.num_outputs)
        bias = None if linear.bias is None else self._ops.vector(linear, linear.bias)
        self._multiply(x, _Product(linear.weight, bias), out)
        return out

    def logits(self, x: Tensor, norm: Norm | None, linear: Linear) -> Tensor:
        """Norm, if there is one, and LM head."""
        out = x.new_empty(len(x), linear.weight.num_outputs, dtype=torch.float32)
        product = _Product(linear.weight)
        if norm is not None:
            product = product._replace(gains=self._ops.vector(norm, norm.weight), eps=norm.eps)
        self._multiply(x, product, out)
        return out

    def qkv(self, x: Tensor, block: Attention, beside: Tensor | None = None) -> Tensor:
        """Norm and the three projections side by side."""
        gains = self._gains_of(block)
        beside = None if block.beside_norm is None or beside is None else beside.contiguous()
        runs = self._ops.fused_runs(block, block.query, block.key, block.value)
        width = sum(matrix.num_outputs for matrix, _ in runs)
        out = x.new_empty(len(x), width)
        first = 0
        for matrix, bias in runs:
            product = _Product(matrix, bias, gains, block.norm.eps, beside)
            self._multiply(x, product, out[:, first : first + matrix.num_outputs])
            first += matrix.num_outputs
        return out

    def noise(
        self, streams: Tensor, positions: Tensor, num_columns: int, token_ids: Tensor | None
    ) -> Tensor:
        """Return the noise that picks."""
        out = streams.new_empty(len(streams), num_columns, dtype=torch.float64)
        ids = streams if token_ids is None else token_ids.contiguous()
        sizes = (streams.stride(0), positions.stride(0), num_columns)
        self._launch(
            noise_kernel,
            (len(streams), triton.cdiv(num_columns, _NOISE_BLOCK)),
            (streams, positions, ids, out, *sizes),
            {"HAS_IDS": token_ids is not None, "BLOCK": _NOISE_BLOCK},
        )
        return out

    def attend(self, qkv: Tensor, block: Attention, pages: PagedKeys, rows: DeviceRows) -> Tensor:
        """Turn queries and keys, write keys and values to their pages, attend."""
        return self._attention.attend(qkv, block, pages, rows)

    def output(self, attended: Tensor, block: Attention, residual: Tensor) -> Tensor:
        """Project what was attended to and add it."""
        return self._added(attended, block.output, block.output_norm, residual)

    def mlp(self, x: Tensor, block: GatedMlp) -> Tensor:
        """x plus the dense MLP of it."""
        assert block.gate is not None, "why_not_fast lets no other in"
        ((matrix, _),) = self._ops.fused_runs(block, block.gate, block.up)
        inner = x.new_empty(len(x), matrix.num_outputs // 2)
        gains = self._ops.vector(block.norm, block.norm.weight)
        gate = _GATES[block.activation]
        self._multiply(x, _Product(matrix, None, gains, block.norm.eps, gate=gate), inner)
        return self._added(inner, block.down, block.output_norm, x)

    def _added(self, x: Tensor, linear: Linear, norm: Norm | None, residual: Tensor) -> Tensor:
        """Return the residual plus a projection, normed where there is a norm."""
        residual = residual.contiguous()
        bias = None if linear.bias is None else self._ops.vector(linear, linear.bias)
        product = _Product(linear.weight, bias, residual=residual if norm is None else None)
        out = torch.empty_like(residual)
        self._multiply(x, product, out)
        return out if norm is None else self._normed(out, norm, residual)

    def _normed(self, x: Tensor, norm: Norm, residual: Tensor | None) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        width = x.shape[-1]
        gains = self._ops.vector(norm, norm.weight)
        self._launch(
            norm_kernel,
            (x.numel() // width,),
            (x, gains, out if residual is None else residual, out, norm.eps),
            {"K": width, "WIDTH": triton.next_power_of_2(width), "ADDS": residual is not None},
        )
        return out

    def _multiply(self, x: Tensor, product: _Product, out: Tensor) -> None:
        """Write a product to `out`, whose rows may lie apart."""
        weights, words, stride, form = _laid_out(product.matrix)
        x = x.contiguous()
        num_rows, width = x.shape
        gated = bool(product.gate)
        num_outputs = product.matrix.num_outputs // (2 if gated else 1)
        bias = weights if product.bias is None else product.bias
        residual = out if product.residual is None else product.residual
        what = {
            "K": width,
            "PARTS": 1 if product.beside is None else 2,
            "IS_NORMED": product.gains is not None,
            "GATE": product.gate,
            "HAS_BIAS": product.bias is not None,
            "ADDS": product.residual is not None,
            "FORM": form,
        }
        of_weights = (weights, words, bias, residual, out, num_rows, num_outputs, stride)
        numbers = (*of_weights, out.stride(0))
        shape = Weights(num_outputs, width * what["PARTS"], form[0], gated)
        if num_rows <= FEW_ROWS:
            self._multiply_few(x, product, numbers, what, shape)
        else:
            self._multiply_many(x, product, numbers, what, shape)

    def _multiply_few(
        self, x: Tensor, product: _Product, numbers: Any, what: dict[str, Any], shape: Weights
    ) -> None:
        tile = self.tiles.few_rows(shape)
        gains = x if product.gains is None else product.gains
        beside = x if product.beside is None else product.beside
        self._launch(
            rows_kernel,
            (triton.cdiv(shape.outputs, tile.outputs),),
            (x, beside, gains, *numbers, product.eps),
            what
            | {"ROWS": tile.rows, "BLOCK_OUTPUTS": tile.outputs, "BLOCK_K": tile.inputs}
            | {"STAGES": tile.stages, "LINES": tile.lines},
            num_warps=tile.warps,
        )

    def _multiply_many(
        self, x: Tensor, product: _Product, numbers: Any, what: dict[str, Any], shape: Weights
    ) -> None:
        tile = self.tiles.many_rows(len(x), shape)
        inverses = x
        if product.gains is not None:
            beside = x if product.beside is None else product.beside
            scaled = x.new_empty(len(x), shape.inputs)
            inverses = x.new_empty(len(x), what["PARTS"], dtype=torch.float32)
            self._launch(
                scale_kernel,
                (triton.cdiv(len(x), FEW_ROWS),),
                (x, beside, product.gains, scaled, inverses, len(x), product.eps),
                {"K": what["K"], "PARTS": what["PARTS"], "ROWS": FEW_ROWS, "BLOCK_K": 64},
            )
            x = scaled
        tiles = triton.cdiv(len(x), tile.rows) * triton.cdiv(shape.outputs, tile.outputs)
        self._launch(
            tiles_kernel,
            (tiles,),
            (x, inverses, *numbers),
            what
            | {"ROWS": tile.rows, "BLOCK_OUTPUTS": tile.outputs, "BLOCK_K": tile.inputs}
            | {"STAGES": tile.stages, "TOGETHER": 8},
            num_warps=tile.warps,
        )

    def _gains_of(self, block: Attention) -> Tensor:
        """Return the weights of the norms before q/k/v, one after the other."""
        if block.beside_norm is None:
            return self._ops.vector(block.norm, block.norm.weight)
        if block not in self._gains:
            norms = (block.beside_norm, block.norm)
            self._gains[block] = torch.cat([self._ops.vector(n, n.weight) for n in norms])
        return self._gains[block]


def _laid_out(matrix: Matrix) -> tuple[Tensor, Tensor, int, tuple[int, int, bool]]:
    """Return weights, words of scales, the stride between rows or chunks, and the form."""
    if isinstance(matrix, PackedMatrix):
        bits, group, has_minimums = matrix.packing
        form = (bits, group, has_minimums)
        return matrix.levels, matrix.words, matrix.words.stride(1), form
    values = matrix.values
    return values, values, values.stride(0), (8 * values.itemsize, 0, False)
