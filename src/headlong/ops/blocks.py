"""The blocks every architecture and head is made of, as small frozen specs.

A layer is a mixer (`mixers.py`) and a channel part (`channels.py`), both offered here too. A spec
says what a block computes and holds its weights; backends compute it (`op_set.Ops`). Variants of an
architecture are fields of the specs, not subclasses. A backend may cache what it makes of a spec
for as long as the spec lives, so specs have a weak-reference slot and are compared by identity.
"""

from dataclasses import dataclass

from headlong.ops.block_parts import Linear, Matrix, Norm, Rope
from headlong.ops.channels import (
    Activation,
    Channel,
    Expert,
    Experts,
    GatedMlp,
    PerLayerInput,
    Router,
)
from headlong.ops.mixers import (
    Attending,
    Attention,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    SharedAttention,
)

__all__ = [
    "Activation",
    "Attending",
    "Attention",
    "Channel",
    "Expert",
    "Experts",
    "GatedDeltaNet",
    "GatedMlp",
    "LatentAttention",
    "Layer",
    "Linear",
    "Mamba2",
    "Matrix",
    "Mixer",
    "Norm",
    "PerLayerInput",
    "Rope",
    "Router",
    "SharedAttention",
]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Layer:
    """One layer of a backbone or head: a mixer, then a channel part; one of them may be absent.

    Gemma 4 has a second channel part (`PerLayerInput`) in some models, and multiplies what comes
    out of a layer by one number.
    """

    mixer: Mixer | None
    channel: Channel | None
    second: Channel | None = None
    scale: float = 1.0

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
        """The projections of all parts."""
        parts = [part for part in (self.mixer, self.channel, self.second) if part is not None]
        return tuple(linear for part in parts for linear in part.linears)
