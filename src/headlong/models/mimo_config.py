"""The numbers in which MiMo-V2 differs from other models with sliding windows."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headlong.errors import CheckpointError
from headlong.models.settings import Settings

if TYPE_CHECKING:
    from headlong.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class MimoConfig:
    """Sizes of heads that are not the same everywhere."""

    value_dim: int
    """Size of a value head; queries and keys are of `ModelConfig.head_dim`."""
    local_kv_heads: int
    """Key/value heads of sliding-window layers; others have `ModelConfig.num_kv_heads`."""
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        is_sound = 2 <= self.value_dim <= 4096 and self.value_dim % 2 == 0
        if not is_sound or not 1 <= self.local_kv_heads <= 1024:
            raise CheckpointError(
                f"{self.local_kv_heads} key/value heads in sliding-window layers, with values of "
                f"size {self.value_dim}.",
                "The model's metadata is damaged; pull the model again.",
            )


def with_hugging_face_mimo(config: "ModelConfig", keys: Settings) -> "ModelConfig":
    """Return a configuration with what config.json says beside the usual."""
    pattern = keys.items("hybrid_layer_pattern")
    # transformers and SGLang look at so many positions and at the row's own; llama.cpp leaves one
    # of them out. Files are published with both numbers equal.
    window = keys.integer("sliding_window_size", 0) + 1 if keys.has("sliding_window_size") else None
    local = frozenset(index for index, kind in enumerate(pattern) if kind == 1)
    local_kv_heads = keys.integer("swa_num_key_value_heads", 2 * config.num_kv_heads)
    return replace(
        config,
        sliding_window=window or config.sliding_window,
        local_layers=local or config.local_layers,
        local_rope_theta=config.local_rope_theta or keys.number("swa_rope_theta", 10_000.0),
        mimo=MimoConfig(
            value_dim=keys.integer("v_head_dim", config.head_dim),
            local_kv_heads=local_kv_heads,
            value_scale=keys.number("attention_value_scale", 1.0),
        ),
    )


def with_gguf_mimo(config: "ModelConfig", keys: Settings) -> "ModelConfig":
    """Return a configuration with what GGUF metadata says beside the usual."""
    num_kv_heads = keys.by_layer("attention.head_count_kv", config.num_layers)
    pattern = keys.items("attention.sliding_window_pattern")[: config.num_layers]
    local = frozenset(index for index, is_local in enumerate(pattern) if is_local)
    whole = [heads for index, heads in enumerate(num_kv_heads) if index not in local]
    windowed = [heads for index, heads in enumerate(num_kv_heads) if index in local]
    window = config.sliding_window
    return replace(
        config,
        num_kv_heads=max(whole, default=config.num_kv_heads),
        sliding_window=None if window is None else window + 1,
        local_layers=local,
        local_rope_theta=keys.number("rope.freq_base_swa", 10_000.0),
        rotary_dim=keys.integer("rope.dimension_count", config.head_dim),
        mimo=MimoConfig(
            value_dim=keys.integer("attention.value_length", config.head_dim),
            local_kv_heads=max(windowed, default=config.num_kv_heads),
            value_scale=keys.number("attention.value_scale", 1.0),
        ),
    )
