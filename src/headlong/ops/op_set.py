"""The op set: the few blocks every architecture and head is written in.

A backend implements `Ops`. Each block is one call and does its own norms, rotary, cache write and
residual; `run_layers` runs all layers, in the native backend as one call into C++. Variants of an
architecture are fields of the small frozen specs below, not subclasses. A backend may cache what it
makes of a spec for as long as the spec lives, so specs have a weak-reference slot and are compared
by identity.

Exactness rests here (design note 0001): what a row yields must not depend, in any bit, on how many
rows are beside it, on their order, or on how a prompt was cut into chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops.calibration import Calibration
from headlong.ops.host_ops import HostOps, PickRule
from headlong.ops.layer_state import LayerState
from headlong.weights.tensors import StoredTensor

Array: TypeAlias = Any
"""Rows of activations of a backend: opaque above it, but for len, slices and single rows."""

Matrix: TypeAlias = Any
"""A weight matrix (outputs, inputs) in whatever form its backend packs it; opaque to others."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Norm:
    """Root-mean-square norm with a learned scale."""

    weight: FloatArray  # (H,)
    eps: float


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Linear:
    """A projection, with a bias where the architecture has one."""

    weight: Matrix  # (outputs, inputs)
    bias: FloatArray | None = None  # (outputs,)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Rope:
    """Rotary positions: of the first R dimensions, pairs (i, i + R/2) turn by position × frequency.

    The other dimensions of a head, if there are any, stay as they are.
    """

    frequencies: FloatArray  # (R // 2,), R at most the head size


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
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
    gate: Linear | None = None
    """(num_heads * head_dim, H): sigmoid of it multiplies what was attended to (Qwen3.5)."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        gates = () if self.gate is None else (self.gate,)
        return (self.query, self.key, self.value, self.output, *gates)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class GatedDeltaNet:
    """x + output(norm(o) * silu(gate)), where o reads a matrix S per head that every row updates.

    With q, k, v = silu(convolution(mixed)), q and k of unit length, q also times key_dim ** -0.5:
        S = exp(g) S;  S = S + k ⊗ beta (v - Sᵀ k);  o = Sᵀ q
        beta = sigmoid(update(x)),  g = -decay_rate * softplus(decay(x) + decay_bias)
    Value heads share key heads evenly: value head h reads key head h // (value heads / key heads).
    """

    norm: Norm
    mixed: Linear  # (2 * num_key_heads * key_dim + num_value_heads * value_dim, H): q, k, v
    gate: Linear  # (num_value_heads * value_dim, H)
    update: Linear  # (num_value_heads, H)
    decay: Linear  # (num_value_heads, H)
    convolution: FloatArray  # (width, outputs of `mixed`), the oldest row's factors first
    decay_rate: FloatArray  # (num_value_heads,)
    decay_bias: FloatArray  # (num_value_heads,)
    head_norm: Norm  # (value_dim,)
    output: Linear  # (H, num_value_heads * value_dim)
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        return (self.mixed, self.gate, self.update, self.decay, self.output)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class GatedMlp:
    """x + down(activation(gate(norm(x))) * up(norm(x)))."""

    norm: Norm
    gate: Linear  # (I, H)
    up: Linear  # (I, H)
    down: Linear  # (H, I)
    activation: Literal["silu", "gelu_tanh"] = "silu"
    output_norm: Norm | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        return (self.gate, self.up, self.down)


Mixer: TypeAlias = Attention | GatedDeltaNet
"""The part of a layer that lets rows of a sequence read earlier ones, through a state."""

Channel: TypeAlias = GatedMlp
"""The part of a layer that works on every row alone."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Layer:
    """One layer of a backbone or head: a mixer, then a channel part."""

    mixer: Mixer
    channel: Channel

    @property
    def attention(self) -> Attention:
        """The mixer of a layer that is known to attend, as those of heads are."""
        assert isinstance(self.mixer, Attention), "this layer does not attend"
        return self.mixer


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

    @property
    def positions(self) -> IntArray:
        """(N,) the position of every row in its sequence."""
        spans = self.spans
        return np.concatenate([one.first_position + np.arange(one.num_rows) for one in spans])


class Ops(Protocol):
    """A backend: the blocks models and heads are made of. N is the number of rows of a pass."""

    name: str
    note: str
    """What is to be said about this backend: how it runs, or why a faster one does not."""
    host: HostOps
    """Its picks, rows that wait for a drafter, and token indices."""

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> Matrix:
        """Pack a stored (outputs, inputs) tensor for `project`, `embed` and the blocks.

        `quant` asks for another precision than the stored one: q4, q5, q6, q8, f16, bf16, f32.
        """

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of memory `matrix` would take for a tensor, without packing it."""

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format `matrix` would pack a tensor in."""

    def settle(self) -> None:
        """Free what only loading needed; called once a model or a head is loaded."""

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return what this mixer remembers of a sequence that has no rows yet."""

    def join(self, parts: Sequence[Array], axis: int = 0) -> Array:
        """Put arrays one after the other along an axis: rows (0) or columns (-1)."""

    def stack(self, parts: Sequence[Array]) -> Array:
        """Put arrays of one shape beside each other along a new first axis."""

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

    def attention(
        self,
        x: Array,
        block: Attention,
        states: Sequence[LayerState],
        rows: Rows,
        beside: Array | None = None,
    ) -> Array:
        """Write the rows' keys and values into `states` (one per span), attend, add to x: (N, H).

        A row at position p sees the cached positions before its span and the span's rows up to p.
        """

    def gated_delta_net(
        self, x: Array, block: GatedDeltaNet, states: Sequence[LayerState], rows: Rows
    ) -> Array:
        """Let the rows update their states (one per span), in order, read them, add to x: (N, H).

        The states must have been told of these rows by `append`.
        """

    def gated_mlp(self, x: Array, block: GatedMlp) -> Array:
        """Apply a gated MLP block to every row: (N, H) → (N, H)."""

    def run_layers(
        self,
        x: Array,
        layers: Sequence[Layer],
        states: Sequence[Sequence[LayerState]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[Array, Array | None]:
        """Run mixer and channel part of every layer: (N, H) → (N, H).

        `states` holds, for every span, its layer states in the order of `layers`. The inputs of
        `tap_layers` come back side by side (N, T * H), or None when none are asked for.
        """

    def run_last(
        self,
        x: Array,
        layer: Layer,
        states: Sequence[LayerState],
        rows: Rows,
        beside: Array | None = None,
    ) -> Array:
        """Run one layer that attends as far as it is read: (N, H) → (spans, H), of each last row.

        The states get keys and values of all rows. A head that follows its backbone needs no more
        of them: its next draft starts at the last one.
        """

    def residual_silu(self, x: Array, linear: Linear) -> Array:
        """x + silu(linear(x)), the block of Medusa-style heads: (N, H) → (N, H)."""


class DraftRow(NamedTuple):
    """A request for a draft of one sequence."""

    state: Array  # (H,)
    layer: LayerState
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
