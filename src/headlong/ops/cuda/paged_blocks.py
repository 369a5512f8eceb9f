"""Blocks over rows that live on the device: what a whole pass is made of where graphs replay it.

In:  rows, their positions and slots, and the pages their keys are in: tensors of fixed shapes, so
     that a pass can be captured once and replayed with other numbers in them.
Out: rows. Where they replay, nothing in them waits for the device or reads it from the host.
`PagedBlocks` is implemented twice: in plain torch (`plain_paged_blocks`), which is the truth, and
by Triton kernels (`triton_paged_blocks`). `why_not_fast` says which layers this covers.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from headlong.ops.blocks import Attention, GatedMlp, Layer, Linear, Matrix, Norm
from headlong.ops.cuda.packed_matrix import PackedMatrix, Packing
from headlong.ops.cuda.pick import gumbel

PAGE_SIZE = 64
"""Positions of a page."""

WIDEST_HEAD = 256
"""Numbers of a head that the kernels hold on the chip."""


class DeviceRows(NamedTuple):
    """The rows of a pass. Those of one slot stand beside each other, in order of position."""

    token_ids: Tensor  # (N,) int32
    positions: Tensor  # (N,) int32
    slots: Tensor  # (N,) int32; -1 for rows that only fill up: they write nothing
    page_table: Tensor  # (slots, pages of a slot) int32: which page holds which 64 positions


class PagedKeys(NamedTuple):
    """Keys and values of one layer, of all slots."""

    keys: Tensor  # (pages, PAGE_SIZE, kv_heads, D)
    values: Tensor  # (pages, PAGE_SIZE, kv_heads, D)


class PagedBlocks(Protocol):
    """The blocks. N is the number of rows; a row's bits depend on nothing beside it."""

    note: str
    """How they run."""
    replays: bool
    """Whether a graph can replay them: nothing in them reads the device from the host."""
    overlaps: bool
    """Whether a kernel begins while the one before still runs; can be turned off."""

    def make_pages(self, layers: Sequence[Layer], num_pages: int) -> tuple[PagedKeys, ...]:
        """Return room for keys and values of every layer, zeroed."""

    def embed(self, table: Matrix, token_ids: Tensor, scale: float = 1.0) -> Tensor:
        """Look up embedding rows: (N,) → (N, H)."""

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Apply a norm to every row: (N, H) → (N, H)."""

    def project(self, x: Tensor, linear: Linear) -> Tensor:
        """Apply a projection to every row: (N, inputs) → (N, outputs)."""

    def logits(self, x: Tensor, norm: Norm | None, linear: Linear) -> Tensor:
        """Norm, if there is one, and LM head: (N, H) → (N, V) float32."""

    def qkv(self, x: Tensor, block: Attention, beside: Tensor | None = None) -> Tensor:
        """Norm and the three projections side by side: (N, (heads + 2 * kv_heads) * D)."""

    def attend(self, qkv: Tensor, block: Attention, pages: PagedKeys, rows: DeviceRows) -> Tensor:
        """Turn queries and keys, write keys and values to their pages, attend: (N, heads * D).

        A row sees its slot's positions up to its own, those of this pass included.
        """

    def output(self, attended: Tensor, block: Attention, residual: Tensor) -> Tensor:
        """Project what was attended to and add it: (N, heads * D) → (N, H)."""

    def mlp(self, x: Tensor, block: GatedMlp) -> Tensor:
        """x plus the dense MLP of it: (N, H) → (N, H)."""

    def noise(
        self, streams: Tensor, positions: Tensor, num_columns: int, token_ids: Tensor | None
    ) -> Tensor:
        """Return the noise that picks: (N,), (N,) → (N, V) float64, see `pick.MakeNoise`."""

    def run_layer(
        self,
        x: Tensor,
        layer: Layer,
        pages: PagedKeys,
        rows: DeviceRows,
        beside: Tensor | None = None,
    ) -> Tensor:
        """Run one layer: (N, H) → (N, H); `beside` is what `Attention.beside_norm` reads."""

    def run_layers(
        self,
        x: Tensor,
        layers: Sequence[Layer],
        pages: Sequence[PagedKeys],
        rows: DeviceRows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Run all layers; the inputs of `tap_layers` come back side by side (N, T * H)."""


class LayerByLayer:
    """The part of `PagedBlocks` that is made of the others, or of torch alone."""

    overlaps = False

    def noise(
        self, streams: Tensor, positions: Tensor, num_columns: int, token_ids: Tensor | None
    ) -> Tensor:
        """Return the noise, made by torch."""
        return gumbel(streams, positions, num_columns, token_ids)

    def run_layer(
        self: PagedBlocks,
        x: Tensor,
        layer: Layer,
        pages: PagedKeys,
        rows: DeviceRows,
        beside: Tensor | None = None,
    ) -> Tensor:
        """Run the parts of one layer, one after the other."""
        block = layer.attention
        attended = self.attend(self.qkv(x, block, beside), block, pages, rows)
        residual = self.norm(x, block.norm) if block.adds_to_normed else x
        return self.mlp(self.output(attended, block, residual), layer.mlp)

    def run_layers(
        self: PagedBlocks,
        x: Tensor,
        layers: Sequence[Layer],
        pages: Sequence[PagedKeys],
        rows: DeviceRows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layers, one after the other."""
        tapped: dict[int, Tensor] = {}
        for index, (layer, own) in enumerate(zip(layers, pages, strict=True)):
            if index in tap_layers:
                tapped[index] = x
            x = self.run_layer(x, layer, own, rows)
        if not tap_layers:
            return x, None
        parts = [tapped[index] for index in tap_layers]
        joined = x.new_empty(len(x), sum(part.shape[1] for part in parts))
        for part, place in zip(parts, joined.split([p.shape[1] for p in parts], 1), strict=True):
            place.copy_(part)
        return x, joined


def why_not_fast(layers: Sequence[Layer]) -> str | None:
    """Return why some layer has no paged blocks; None when all have."""
    for index, layer in enumerate(layers):
        reason = _why_not(layer)
        if reason is not None:
            return f"layer {index} {reason}"
    return None


def format_of(matrix: Matrix) -> Packing | None:
    """Return how a matrix is packed; None where it is kept in floats."""
    return matrix.packing if isinstance(matrix, PackedMatrix) else None


def _why_not(layer: Layer) -> str | None:
    block = layer.mixer
    if not isinstance(block, Attention):
        return f"is {'no attention' if block is None else f'a {type(block).__name__}'}"
    if not isinstance(layer.channel, GatedMlp) or layer.channel.gate is None:
        return "has no gated MLP"
    gate, up = layer.channel.gate, layer.channel.up
    if layer.channel.activation == "relu_squared" or gate.bias is not None or up.bias is not None:
        return "has an MLP with squared ReLU or biases"
    if format_of(gate.weight) != format_of(up.weight):
        return "has gate and up in different formats"
    if layer.second is not None or layer.scale != 1.0:
        return "has inputs or a scale of its own"
    if block.gate is not None or block.sinks is not None or block.value_norm is not None:
        return "has attention with a gate, sinks or a norm of values"
    if block.value_dim != block.head_dim or block.value_scale != 1.0:
        return "has values of another size or scale than keys"
    if not len(block.rope.frequencies) or (
        block.beside_norm is not None and block.beside_norm.eps != block.norm.eps
    ):
        return "has heads that do not turn, or two norms of different epsilons"
    if block.head_dim > WIDEST_HEAD:
        return f"has heads of {block.head_dim} numbers; fast are up to {WIDEST_HEAD}"
    return None
