"""The blocks every architecture and head is made of, as small frozen specs.

A layer is a mixer and a channel part. A spec says what a block computes and holds its weights;
backends compute it (`op_set.Ops`). Variants of an architecture are fields of the specs, not
subclasses. A backend may cache what it makes of a spec for as long as the spec lives, so specs have
a weak-reference slot and are compared by identity.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from headlong.arrays import FloatArray, IntArray

Matrix: TypeAlias = Any
"""A weight matrix (outputs, inputs) in whatever form its backend packs it; opaque to others."""

Activation: TypeAlias = Literal["silu", "gelu_tanh", "relu_squared"]


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
    amplitude: float = 1.0
    """Multiplies the dimensions that turn (YaRN)."""


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


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class GatedMlp:
    """x + down(activation(gate(norm(x))) * up(norm(x))).

    Without a gate (Nemotron) x + down(activation(up(norm(x)))).
    """

    norm: Norm
    gate: Linear | None  # (I, H)
    up: Linear  # (I, H)
    down: Linear  # (H, I)
    activation: Activation = "silu"
    output_norm: Norm | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        gates = () if self.gate is None else (self.gate,)
        return (*gates, self.up, self.down)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Router:
    """Which of E experts a row goes to, and what share of their sum each has.

    scores = scoring(linear(norm(x))). The experts with the highest scores + `choice_bias` are
    chosen, at equal height those that come first. Shares are the scores of the chosen ones.
    """

    linear: Linear  # (E, H), packed in floats: small changes of a score change the choice
    num_chosen: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    is_renormalised: bool = True
    """Whether the shares of a row are divided by their sum."""
    scales: FloatArray | None = None  # (E,)
    """Multiplies each expert's share after that."""
    choice_bias: FloatArray | None = None  # (E,)
    num_groups: int = 1
    """Experts are cut into so many groups; a group is as good as the sum of its two best."""
    num_chosen_groups: int = 1
    """Only experts of so many groups, the best ones, can be chosen."""
    norm: Norm | None = None
    """What it applies to x instead of the block's own norm (Gemma 4)."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Expert:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate."""

    gate: Linear | None  # (I, D)
    up: Linear  # (I, D)
    down: Linear  # (D, I)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        gates = () if self.gate is None else (self.gate,)
        return (*gates, self.up, self.down)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Experts:
    """x + output_norm(sum_norm(expand(Σ share * expert(reduce(norm(x))))) + shared part).

    The sum goes over the experts that the router chose, in the order of their numbers. The shared
    part is what `shared` would add to x, times sigmoid(shared_gate(norm(x))). What is None is left
    out.
    """

    norm: Norm
    router: Router
    experts: tuple[Expert, ...]
    activation: Activation = "silu"
    shared: GatedMlp | None = None
    """Runs for every row, with its own norms of x and of its result."""
    shared_gate: Linear | None = None  # (1, H)
    reduce: Linear | None = None  # (D, H)
    """What experts read where they are not as wide as the rows (Nemotron 3 Super)."""
    expand: Linear | None = None  # (H, D)
    sum_norm: Norm | None = None
    output_norm: Norm | None = None

    @property
    def shared_linears(self) -> tuple[Linear, ...]:
        """The projections that every row goes through."""
        single = (self.router.linear, self.shared_gate, self.reduce, self.expand)
        shared = () if self.shared is None else self.shared.linears
        return (*(linear for linear in single if linear is not None), *shared)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections, those of all experts included."""
        of_experts = (linear for expert in self.experts for linear in expert.linears)
        return (*self.shared_linears, *of_experts)


Mixer: TypeAlias = Attention | LatentAttention | GatedDeltaNet
"""The part of a layer that lets rows of a sequence read earlier ones, through a state."""

Channel: TypeAlias = GatedMlp | Experts
"""The part of a layer that works on every row alone."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Layer:
    """One layer of a backbone or head: a mixer, then a channel part; one of them may be absent."""

    mixer: Mixer | None
    channel: Channel | None

    @property
    def attention(self) -> Attention:
        """The mixer of a layer that is known to attend, as those of trained heads are."""
        assert isinstance(self.mixer, Attention), "this layer does not attend"
        return self.mixer

    @property
    def mlp(self) -> GatedMlp:
        """The channel part of a layer that is known to have a dense MLP."""
        assert isinstance(self.channel, GatedMlp), "this layer has no dense MLP"
        return self.channel

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The projections of both parts."""
        parts = [part for part in (self.mixer, self.channel) if part is not None]
        return tuple(linear for part in parts for linear in part.linears)


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
    layer: Layer
    fusion: Fusion | None
    """None where the attention reads the embedding beside the state."""
    norm: Norm
    lm_head: Linear  # (V_draft, H)
    carries_normed: bool
    """Whether the state is carried on after `norm`, which then is not applied again to score."""
    vocabulary: IntArray | None  # (V_draft,)
