"""The channel parts of layers: MLPs, mixtures of experts, inputs per layer (`blocks.py`)."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headlong.arrays import FloatArray
from headlong.ops.block_parts import Linear, Norm

Activation: TypeAlias = Literal["silu", "gelu_tanh", "relu_squared"]


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


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PerLayerInput:
    """x + norm(projection(gelu_tanh(gate(x)) * own)); every row has P numbers `own` for each layer.

    These are the numbers from `first` on of a row of `Rows.beside`.
    """

    gate: Linear  # (P, H)
    projection: Linear  # (H, P)
    norm: Norm  # (H,)
    first: int

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Its projections."""
        return (self.gate, self.projection)


Channel: TypeAlias = GatedMlp | Experts | PerLayerInput
"""The part of a layer that works on every row alone."""
