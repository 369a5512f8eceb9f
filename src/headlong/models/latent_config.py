"""The numbers that define latent attention, from GGUF metadata or config.json."""

from dataclasses import dataclass

from headlong.errors import CheckpointError
from headlong.models.rope_scaling import yarn_gain
from headlong.models.settings import Settings


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Sizes of heads that share one latent vector per position."""

    rank: int
    """Width of the latent vectors."""
    plain_dim: int
    """Dimensions of a query head that do not turn with the position; they come first."""
    rotary_dim: int
    value_dim: int
    query_rank: int | None
    """Width that queries are made from; None where they are made from the hidden state."""
    gain: float = 1.0
    """What scores are multiplied with beside head_dim ** -0.5, for stretched positions."""
    is_interleaved: bool = True
    """Whether rotary dimensions lie in pairs (0, 1), (2, 3), …, not half by half."""

    def __post_init__(self) -> None:
        sizes = (self.rank, self.plain_dim, self.rotary_dim, self.value_dim, self.query_rank or 1)
        are_even = not (self.rank % 2 or self.rotary_dim % 2)
        widths = (self.rank + self.rotary_dim, self.head_dim, self.value_dim)
        is_narrow = max(widths) <= 4096 and (self.query_rank or 1) <= 2**17
        if min(sizes) < 1 or not are_even or not is_narrow:
            raise CheckpointError(
                f"Latent attention with vectors of {self.rank}, heads of {self.plain_dim} + "
                f"{self.rotary_dim} and values of {self.value_dim}, from {self.query_rank}.",
                "Latent and rotary sizes must be even, and no head wider than 4096; the model's "
                "metadata is damaged.",
            )

    @property
    def head_dim(self) -> int:
        """Dimensions of a query head."""
        return self.plain_dim + self.rotary_dim

    @property
    def scale(self) -> float:
        """What query · key is multiplied with."""
        return float(self.gain * self.head_dim**-0.5)


def gguf_latent(keys: Settings) -> LatentConfig | None:
    """Read them from GGUF metadata; None where a model has no latent attention."""
    if not keys.has("attention.kv_lora_rank"):
        return None
    # Files from before llama.cpp kept latent vectors in its cache have no keys for MLA's own sizes.
    head_dim, value_dim = (
        keys.integer(f"attention.{kind}_length_mla", keys.integer(f"attention.{kind}_length"))
        for kind in ("key", "value")
    )
    rotary_dim = keys.integer("rope.dimension_count")
    return LatentConfig(
        rank=keys.integer("attention.kv_lora_rank"),
        plain_dim=max(head_dim - rotary_dim, 0),
        rotary_dim=rotary_dim,
        value_dim=value_dim,
        query_rank=keys.integer("attention.q_lora_rank", 0) or None,
        gain=_gain(keys, "rope.scaling.", 10 * keys.number("rope.scaling.yarn_log_multiplier", 0)),
    )


def hugging_face_latent(keys: Settings, scaling: Settings) -> LatentConfig | None:
    """Read them from config.json; None where a model has no latent attention.

    `scaling` is the part of it that tells how rotary positions are stretched.
    """
    if not keys.has("kv_lora_rank"):
        return None
    return LatentConfig(
        rank=keys.integer("kv_lora_rank"),
        plain_dim=keys.integer("qk_nope_head_dim"),
        rotary_dim=keys.integer("qk_rope_head_dim"),
        value_dim=keys.integer("v_head_dim"),
        query_rank=keys.integer("q_lora_rank", 0) or None,
        gain=_gain(scaling, "", scaling.number("mscale_all_dim", 0)),
        is_interleaved=keys.flag("rope_interleave", default=True),
    )


def _gain(keys: Settings, prefix: str, strength: float) -> float:
    if strength == 0:
        return 1.0
    return yarn_gain(keys.number(f"{prefix}factor"), strength) ** 2
