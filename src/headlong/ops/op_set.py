"""The op set: the few blocks every architecture and head is written in.

A backend implements `Ops`. Each block is one call and does its own norms, rotary, cache write and
residual, so that sixty calls make a pass and Python stays out of the profile. Variants of an
architecture are fields of the small frozen specs below, not subclasses. A backend may watch
them (weak references), to know how long what it made of them is needed.

Law 1 rests here: what a row yields must not depend, in any bit, on how many rows stand beside it,
on their order, or on how a prompt was cut into chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

from headlong.arrays import FloatArray, IntArray
from headlong.ops.calibration import Calibration
from headlong.ops.host_ops import HostOps, PickRule
from headlong.weights.tensors import StoredTensor

Matrix: TypeAlias = Any
"""A weight matrix (outputs, inputs) in whatever form its backend packs it; opaque to others."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Norm:
    """Root-mean-square norm with a learned scale."""

    weight: FloatArray  # (H,)
    eps: float


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Linear:
    """A projection, with a bias where the architecture has one."""

    weight: Matrix  # (outputs, inputs)
    bias: FloatArray | None = None  # (outputs,)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Rope:
    """Rotary positions: dimension pairs (i, i + D/2) turn by position × frequency i."""

    frequencies: FloatArray  # (head_dim // 2,)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Attention:
    """x + output(attend(query, key, value of norm(x))), with grouped heads."""

    norm: Norm
    query: Linear  # (num_heads * head_dim, H), or 2H inputs when `beside_norm` is set
    key: Linear  # (num_kv_heads * head_dim, H or 2H)
    value: Linear
    output: Linear  # (H, num_heads * head_dim)
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    scale: float
    """Multiplies query · key; usually head_dim ** -0.5."""
    query_norm: Norm | None = None
    """Norm of each query head before rotary (Qwen3, Gemma3)."""
    key_norm: Norm | None = None
    """Norm of each key head before rotary."""
    beside_norm: Norm | None = None
    """EAGLE-3 heads: q/k/v read [beside_norm(beside), norm(x)], 2H wide."""
    output_norm: Norm | None = None
    """Norm of the block's result before it is added to x (Gemma3)."""
    window: int | None = None
    """Look back at most this many positions, the own one included; None looks at all."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GatedMlp:
    """x + down(activation(gate(norm(x))) * up(norm(x)))."""

    norm: Norm
    gate: Linear  # (I, H)
    up: Linear  # (I, H)
    down: Linear  # (H, I)
    activation: Literal["silu", "gelu_tanh"] = "silu"
    output_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Fusion:
    """fc([embedding_norm(embedding), state_norm(state)]), what a nextn head's layer reads."""

    embedding_norm: Norm
    state_norm: Norm
    fc: Linear  # (H, 2 * H)
    is_state_first: bool


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class DraftBlocks:
    """All that a recursive head computes between one draft token and the next."""

    embedding: Matrix  # (V, H)
    embedding_scale: float
    attention: Attention
    mlp: GatedMlp
    fusion: Fusion | None
    """None where the attention reads the embedding beside the state."""
    norm: Norm
    lm_head: Linear  # (V_draft, H)
    carries_normed: bool
    """Whether the state is carried on after `norm`, which then is not applied again to score."""
    vocabulary: IntArray | None  # (V_draft,)


class LayerBlocks(Protocol):
    """One layer of a stack, as `run_layers` takes it."""

    @property
    def attention(self) -> Attention:
        """The first block."""

    @property
    def mlp(self) -> GatedMlp:
        """The second block."""


class Span(NamedTuple):
    """Consecutive rows of a pass that belong to one sequence."""

    first_row: int
    num_rows: int
    first_position: int
    """Position of the first row in its sequence; the others follow on."""


class Rows(NamedTuple):
    """All rows of one pass: the spans of one or more sequences, side by side."""

    token_ids: IntArray  # (N,)
    spans: tuple[Span, ...]


class KVLayer(Protocol):
    """One layer's keys and values of one sequence, stored as the backend likes."""

    def reserve(self, capacity: int, others: Sequence[Self] = ()) -> None:
        """Make room for `capacity` positions here and in `others`, keeping what is there."""

    def copy_from(self, other: Self, num_positions: int) -> None:
        """Hold the first `num_positions` of `other`, making room for them."""

    @property
    def bytes_per_position(self) -> int:
        """Bytes that room for one more position takes."""

    @property
    def num_bytes(self) -> int:
        """Bytes taken by the room made so far."""


class Ops(Protocol):
    """A backend: the blocks models and heads are made of. N is the number of rows of a pass."""

    name: str
    note: str
    """What is to be said about this backend: how it runs, or why a faster one does not."""
    host: HostOps
    """Its picks, rows that wait for a drafter, and token indices."""

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> Matrix:
        """Pack a stored (outputs, inputs) tensor for `project`, `embed` and the blocks.

        `quant` asks for another precision than the stored one: q4, q8, f16, bf16 or f32.
        """

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of memory `matrix` would take for a tensor, without packing it."""

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format `matrix` would pack a tensor in."""

    def settle(self) -> None:
        """Note that loading is over: give back what only loading needed."""

    def make_kv_layer(self, num_kv_heads: int, head_dim: int) -> KVLayer:
        """Return an empty cache layer."""

    def embed(self, table: Matrix, token_ids: IntArray, scale: float = 1.0) -> FloatArray:
        """Look up embedding rows: (N,) ids → (N, H)."""

    def norm(self, x: FloatArray, norm: Norm) -> FloatArray:
        """Apply a norm to every row: (N, H) → (N, H)."""

    def project(self, x: FloatArray, linear: Linear) -> FloatArray:
        """Apply a projection to every row: (N, inputs) → (N, outputs)."""

    def attention(
        self,
        x: FloatArray,
        block: Attention,
        layers: Sequence[KVLayer],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Write the rows' keys and values into `layers` (one per span), attend, add to x: (N, H).

        A row at position p sees the cached positions before its span and the span's rows up to p.
        """

    def gated_mlp(self, x: FloatArray, block: GatedMlp) -> FloatArray:
        """Apply a gated MLP block to every row: (N, H) → (N, H)."""

    def run_layers(
        self,
        x: FloatArray,
        layers: Sequence[LayerBlocks],
        caches: Sequence[Sequence[KVLayer]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[FloatArray, FloatArray | None]:
        """Run attention and MLP of every layer: (N, H) → (N, H).

        `caches` holds, for every span, its cache layers in the order of `layers`. The inputs of
        `tap_layers` come back side by side (N, T * H), or None when none are asked for.
        """

    def run_last(
        self,
        x: FloatArray,
        layer: LayerBlocks,
        caches: Sequence[KVLayer],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Run one layer as far as it is read: (N, H) → (spans, H), the result of each last row.

        The cache gets keys and values of all rows. A head that follows its backbone needs no more
        of them: its next draft starts at the last one.
        """

    def residual_silu(self, x: FloatArray, linear: Linear) -> FloatArray:
        """x + silu(linear(x)), the block of Medusa-style heads: (N, H) → (N, H)."""


class DraftRow(NamedTuple):
    """What one sequence wants of a draft."""

    state: FloatArray  # (H,)
    layer: KVLayer
    first_position: int
    """Where the row of the first guess goes in `layer`, which has room for `num_tokens` - 1."""
    num_tokens: int
    extend: float
    """The product of chances below which the draft ends."""
    calibration: Calibration | None
    """Turns probabilities into chances to stand; None where they are the same."""
    rule: PickRule
    token_position: int
    """Absolute position of the first guess."""


@runtime_checkable
class DraftingOps(Protocol):
    """A backend that can also make whole drafts, many times sooner than block by block."""

    def draft(
        self, blocks: DraftBlocks, rows: Sequence[DraftRow]
    ) -> list[tuple[list[int], list[float]]] | None:
        """Return every row's guesses and their probabilities; None when logits are not finite."""
