"""How rotary frequencies are stretched for contexts longer than first trained on.

In:  the part of a config.json or of GGUF metadata that says so.
Out: a `RopeScaling`, or None where frequencies stay as they are.
"""

import math
from dataclasses import dataclass

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.settings import Settings


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """What is done to the frequencies, and to the rotated numbers."""

    kind: str
    """"linear" divides all frequencies; "llama3" and "yarn" only the slow ones."""
    factor: float
    low_frequency_factor: float = 1.0
    """Pairs that turn less often in the original context are divided by `factor`."""
    high_frequency_factor: float = 4.0
    """Pairs that turn more often stay as they are, with a ramp in between."""
    original_context_length: int = 8192
    is_ramp_whole: bool = True
    """Whether the ramp of "yarn" begins and ends at whole pairs."""
    amplitude: float = 1.0
    """What "yarn" multiplies rotated numbers with, queries and keys alike."""

    def __post_init__(self) -> None:
        is_ramp = 0 < self.low_frequency_factor < self.high_frequency_factor
        numbers = (self.factor, self.original_context_length, self.amplitude)
        if min(numbers) <= 0 or not is_ramp:
            raise CheckpointError(
                f"Rotary positions are stretched ({self.kind}) by {self.factor:g}, ramp "
                f"{self.low_frequency_factor:g}…{self.high_frequency_factor:g}, from a context of "
                f"{self.original_context_length}, and multiplied by {self.amplitude:g}.",
                "All must be above 0, and the ramp must rise; the model's metadata is damaged.",
            )


def read_rope_scaling(keys: Settings) -> RopeScaling | None:
    """Read how a config.json stretches rotary positions; None when it does not."""
    kind = keys.text("rope_type", keys.text("type", "default"))
    if kind == "default":
        return None
    factor = keys.number("factor", 1.0 if kind == "proportional" else None)
    if kind in ("linear", "proportional"):
        return None if factor == 1.0 else RopeScaling("linear", factor)
    if kind not in ("llama3", "yarn"):
        raise _unknown_scaling(kind)
    original = keys.integer("original_max_position_embeddings")
    if kind == "llama3":
        low, high = keys.number("low_freq_factor"), keys.number("high_freq_factor")
        return RopeScaling("llama3", factor, low, high, original)
    parts = [keys.number(name, 0.0) for name in ("mscale", "mscale_all_dim")]
    usual = yarn_gain(factor)
    if all(parts):
        usual = yarn_gain(factor, parts[0]) / yarn_gain(factor, parts[1])
    return RopeScaling(
        "yarn",
        factor,
        keys.number("beta_slow", 1.0),
        keys.number("beta_fast", 32.0),
        original,
        keys.flag("truncate") or not keys.has("truncate"),
        keys.number("attention_factor", usual),
    )


def read_gguf_scaling(keys: Settings) -> RopeScaling | None:
    """Read how GGUF metadata, under `rope.scaling.`, stretch rotary positions."""
    kind = keys.text("type", "none")
    if kind == "none":
        return None
    factor = keys.number("factor")
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind != "yarn":
        raise _unknown_scaling(kind)
    # Models with this key multiply scores instead, as DeepSeek's do.
    usual = 1.0 if keys.has("yarn_log_multiplier") else yarn_gain(factor)
    return RopeScaling(
        "yarn",
        factor,
        keys.number("yarn_beta_slow", 1.0),
        keys.number("yarn_beta_fast", 32.0),
        keys.integer("original_context_length"),
        amplitude=keys.number("yarn_attn_factor", usual),
    )


def yarn_gain(factor: float, strength: float = 1.0) -> float:
    """Return what YaRN gives numbers back that a stretch by `factor` takes from attention."""
    return 1.0 + 0.1 * strength * math.log(factor) if factor > 1 else 1.0


def _unknown_scaling(kind: str) -> ArchitectureError:
    return ArchitectureError(
        f"The model stretches its rotary positions by {kind!r}.",
        "Known are 'linear', 'llama3' and 'yarn'; use a checkpoint without it.",
    )
