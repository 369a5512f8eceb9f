"""What a recursive head computes between two draft tokens, as one record for fast backends."""

from dataclasses import dataclass

from headlong.arrays import IntArray
from headlong.ops.blocks import Layer, Linear, Matrix, Norm


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
    logit_cap: float | None
    """Logits become cap * tanh(logit / cap); None leaves them."""
    vocabulary: IntArray | None  # (V_draft,)
