"""The op set: the interface of backends, which compute the blocks of `blocks.py` over rows.

A backend implements `Ops`. Each block is one call and does its own norms, rotary, cache write and
residual; `run_layers` runs all layers, in the native backend as one call into C++.

Backends must be batch-invariant (design note 0001): the result of a row must not depend, in any
bit, on the number or order of other rows, or on how a prompt was cut into chunks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops.blocks import Channel, Layer, Linear, Matrix, Mixer, Norm
from headlong.ops.calibration import Calibration
from headlong.ops.draft_blocks import DraftBlocks
from headlong.ops.host_ops import HostOps, PickRule
from headlong.ops.layer_state import LayerState
from headlong.weights.tensors import StoredTensor

Array: TypeAlias = Any
"""Rows of activations of a backend: opaque above it, but for len, slices and single rows."""


class Span(NamedTuple):
    """Consecutive rows of a pass that belong to one sequence."""

    first_row: int
    num_rows: int
    first_position: int
    """Position of the first row in its sequence; the others follow."""


class Rows(NamedTuple):
    """All rows of one pass: the spans of one or more sequences, side by side."""

    token_ids: IntArray  # (N,)
    spans: tuple[Span, ...]
    beside: Array | None = None
    """(N, F) the second input of channel parts that have one (`PerLayerInput`)."""

    @property
    def positions(self) -> IntArray:
        """(N,) the position of every row in its sequence."""
        spans = self.spans
        return np.concatenate([one.first_position + np.arange(one.num_rows) for one in spans])


class Ops(Protocol):
    """A backend: the blocks models and heads are made of. N is the number of rows of a pass."""

    name: str
    note: str
    """A note for users: how the backend runs, or why a faster one is not used."""
    host: HostOps
    """Operations on the host: sampling, backlog rows, token indices."""

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> Matrix:
        """Pack a stored (outputs, inputs) tensor for `project`, `embed` and the blocks.

        `quant` asks for another precision than the stored one: q4, q5, q6, q8, f16, bf16, f32.
        """

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of memory `matrix` would take for a tensor, without packing it."""

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format `matrix` would pack a tensor in."""

    def finish_loading(self) -> None:
        """Free temporary memory of loading; called after a model or a head is loaded."""

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return an empty state of this mixer for a new sequence."""

    def join(self, parts: Sequence[Array], axis: int = 0) -> Array:
        """Concatenate arrays along an axis: rows (0) or columns (-1)."""

    def stack(self, parts: Sequence[Array]) -> Array:
        """Stack arrays of one shape along a new first axis."""

    def rows(self, x: Array, indices: Sequence[int]) -> Array:
        """Return the rows at these indices, in their order."""

    def to_host(self, x: Array) -> FloatArray:
        """Return an array's numbers as float32 in numpy."""

    def embed(self, table: Matrix, token_ids: IntArray, scale: float = 1.0) -> Array:
        """Look up embedding rows: (N,) ids → (N, H)."""

    def norm(self, x: Array, norm: Norm) -> Array:
        """Apply a norm to every row: (N, H) → (N, H)."""

    def project(self, x: Array, linear: Linear) -> Array:
        """Apply a projection to every row: (N, inputs) → (N, outputs)."""

    def mix(
        self,
        x: Array,
        block: Mixer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: Array | None = None,
    ) -> Array:
        """Update the states (one per span) with the rows, in order; add the output to x: (N, H).

        A row at position p sees the positions before its span and the span's rows up to p.
        `append` must have been called on recurrent states for these rows. `beside` is for attention
        that reads a second input (`Attention.beside_norm`).
        """

    def transform(self, x: Array, block: Channel, beside: Array | None = None) -> Array:
        """Apply a channel part to every row: (N, H) → (N, H).

        `beside` is for parts with a second input (`Rows.beside`).
        """

    def run_layers(
        self,
        x: Array,
        layers: Sequence[Layer],
        states: Sequence[Sequence[LayerState | None]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[Array, Array | None]:
        """Run all parts of every layer: (N, H) → (N, H).

        `states` has, for every span, its layer states in the order of `layers`, None where a layer
        has no mixer. The inputs of `tap_layers` are returned concatenated (N, T * H), or None if
        there are none.
        """

    def run_last(
        self,
        x: Array,
        layer: Layer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: Array | None = None,
    ) -> Array:
        """Run one layer, but compute only the last row of each span: (N, H) → (spans, H).

        The states get keys and values of all rows. A head that observes rows needs no more: its
        next draft starts at the last one.
        """

    def residual_silu(self, x: Array, linear: Linear) -> Array:
        """x + silu(linear(x)), the block of Medusa-style heads: (N, H) → (N, H)."""


class RowBlocks(Protocol):
    """Blocks that read one row each; op sets have them, and blocks over pages."""

    def norm(self, x: Array, norm: Norm) -> Array:
        """Apply a norm to every row: (N, H) → (N, H)."""

    def project(self, x: Array, linear: Linear) -> Array:
        """Apply a projection to every row: (N, inputs) → (N, outputs)."""


class DraftRow(NamedTuple):
    """A request for a draft of one sequence."""

    state: Array  # (H,)
    layer: LayerState
    first_position: int
    """Position of the first drafted row in `layer`, which has space for `num_tokens` - 1."""
    num_tokens: int
    extend: float
    """The product of chances below which the draft ends."""
    calibration: Calibration | None
    """Maps probabilities to chances of acceptance; None if they are the same."""
    rule: PickRule
    token_position: int
    """Absolute position of the first draft token."""


class BegunDraft(NamedTuple):
    """A draft of one sequence that may not be computed yet."""

    token_ids: Array  # (K,)
    probs: Array  # (K,), NaN where the logits were NaN


@runtime_checkable
class LazyOps(Protocol):
    """A backend that can verify drafts before the host has read them."""

    def begin_draft(self, blocks: DraftBlocks, rows: Sequence[DraftRow]) -> list[BegunDraft]:
        """Begin a draft of `num_tokens` tokens for every row."""

    def place_drafts(self, token_ids: IntArray, drafts: Sequence[tuple[int, Array]]) -> Array:
        """Return the token ids of a pass, with drafts inserted from these rows on."""

    def collect(self, drafts: Sequence[BegunDraft]) -> list[tuple[list[int], list[float]]]:
        """Return tokens and probabilities of drafts that a pass has verified."""


@runtime_checkable
class DraftingOps(Protocol):
    """A backend that can also compute whole drafts, much faster than block by block."""

    def draft(
        self, blocks: DraftBlocks, rows: Sequence[DraftRow]
    ) -> list[tuple[list[int], list[float]]] | None:
        """Return every row's draft tokens and probabilities; None if logits are not finite."""
