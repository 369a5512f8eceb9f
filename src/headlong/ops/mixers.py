"""The mixers of layers: attention of all kinds, and recurrences (`blocks.py`)."""

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from headlong.arrays import FloatArray
from headlong.ops.block_parts import Linear, Norm, Rope


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Attention:
    """x + output(attend(query, key, value of norm(x))), with grouped heads."""

    norm: Norm
    query: Linear  # (num_heads * head_dim, H), or 2H inputs when `beside_norm` is set
    key: Linear  # (num_kv_heads * head_dim, H or 2H)
    value: Linear  # (num_kv_heads * value_dim, H or 2H)
    output: Linear  # (H, num_heads * value_dim)
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    scale: float
    """Multiplies query · key; usually head_dim ** -0.5."""
    value_size: int | None = None
    """Numbers of a value head, where they are not as many as those of a key head (MiMo-V2)."""
    value_scale: float = 1.0
    """Multiplies what was attended to."""
    sinks: FloatArray | None = None
    """(num_heads,) scores that take their shares of each head's softmax and bring no value."""
    query_norm: Norm | None = None
    """Norm of each query head before rotary (Qwen3, Gemma3)."""
    key_norm: Norm | None = None
    """Norm of each key head before rotary."""
    value_norm: Norm | None = None
    """Norm of each value head (Gemma 4)."""
    beside_norm: Norm | None = None
    """EAGLE-3 heads: q/k/v read [beside_norm(beside), norm(x)], 2H wide."""
    adds_to_normed: bool = False
    """Whether the result is added to norm(x), not to x (EAGLE-3 heads made with `speculators`)."""
    output_norm: Norm | None = None
    """Norm of the block's result before it is added to x (Gemma3)."""
    window: int | None = None
    """Look back at most this many positions, the own one included; None looks at all."""
    gate: Linear | None = None
    """(num_heads * value_dim, H): sigmoid of it multiplies what was attended to (Qwen3.5)."""

    @property
    def value_dim(self) -> int:
        """Numbers of a value head."""
        return self.value_size or self.head_dim

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        gates = () if self.gate is None else (self.gate,)
        return (self.query, self.key, self.value, self.output, *gates)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class LatentAttention:
    """x + output(what heads read), where all heads read one latent vector per position.

    A row keeps the key [l, r] and the value l: latent(norm(x)) is [a, b], l = latent_norm(a), and r
    is b turned by the position. With [q, t] a head of query(query_norm(query_down(norm(x)))), the
    head asks with [key_up q, t turned]; what it reads, a sum of l, goes through value_up.
    """

    norm: Norm
    query: Linear  # (num_heads * (plain_dim + R), H or inputs of query_norm)
    latent: Linear  # (rank + R, H)
    latent_norm: Norm  # (rank,)
    key_up: Linear  # (num_heads * rank, plain_dim), head by head
    value_up: Linear  # (num_heads * value_dim, rank), head by head
    output: Linear  # (H, num_heads * value_dim)
    num_heads: int
    plain_dim: int
    """Dimensions of a query head that do not turn; R, from the rope, follow them and do."""
    value_dim: int
    rope: Rope
    scale: float
    query_down: Linear | None = None  # (inputs of query_norm, H)
    query_norm: Norm | None = None

    @property
    def rank(self) -> int:
        """Width of the latent vectors."""
        return len(self.latent_norm.weight)

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a query or key that turn."""
        return 2 * len(self.rope.frequencies)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        first = () if self.query_down is None else (self.query_down,)
        return (*first, self.query, self.latent, self.key_up, self.value_up, self.output)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class SharedAttention:
    """Attention without keys and values of its own: it reads those that another layer wrote.

    Every field means what it does in `Attention`.
    """

    norm: Norm
    query: Linear  # (num_heads * head_dim, H)
    output: Linear  # (H, num_heads * head_dim)
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    scale: float
    source: int
    """Index of the layer whose keys and values it reads; heads of both are as large."""
    query_norm: Norm
    output_norm: Norm
    window: int | None
    ahead: int = 0
    """Rotary position of queries, relative to their rows."""
    value_scale: ClassVar[float] = 1.0
    sinks: ClassVar[None] = None

    @property
    def value_dim(self) -> int:
        """Numbers of a value head."""
        return self.head_dim

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        return (self.query, self.output)


Attending: TypeAlias = Attention | SharedAttention


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
    tiles_output: bool = False
    """Whether `output` reads one value head of every key head, then the next of each (GGUF)."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        return (self.mixed, self.gate, self.update, self.decay, self.output)

    @property
    def memory_shape(self) -> tuple[int, int, int]:
        """Value heads, and the rows and columns of the matrix of each."""
        return self.num_value_heads, self.key_dim, self.value_dim


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Mamba2:
    """x + output(group_norm(o * silu(gate(norm(x))))), where o reads a state S per head.

    With q, k, v = silu(convolution(mixed) + convolution_bias), called C, B and x in Mamba:
        S = exp(-decay_rate * t) S + k ⊗ t v;  o = Sᵀ q + skip * v
        t = softplus(step(x) + step_bias), within `step_limits`
    Heads share q and k evenly: head h reads those of group h // (heads / groups). The norm is over
    all heads of a group together.
    """

    norm: Norm
    mixed: Linear  # (2 * num_groups * state_size + num_heads * head_dim, H): q, k, v
    gate: Linear  # (num_heads * head_dim, H)
    step: Linear  # (num_heads, H)
    convolution: FloatArray  # (width, outputs of `mixed`), the oldest row's factors first
    convolution_bias: FloatArray  # (outputs of `mixed`,)
    decay_rate: FloatArray  # (num_heads,)
    step_bias: FloatArray  # (num_heads,)
    skip: FloatArray  # (num_heads,)
    group_norm: Norm  # (num_heads * head_dim,)
    output: Linear  # (H, num_heads * head_dim)
    num_groups: int
    num_heads: int
    state_size: int
    head_dim: int
    step_limits: tuple[float, float] = (0.0, math.inf)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        return (self.mixed, self.gate, self.step, self.output)

    @property
    def memory_shape(self) -> tuple[int, int, int]:
        """Heads, and the rows and columns of the state of each."""
        return self.num_heads, self.state_size, self.head_dim


Mixer: TypeAlias = Attending | LatentAttention | GatedDeltaNet | Mamba2
"""The part of a layer that lets rows of a sequence read earlier ones, through a state."""
