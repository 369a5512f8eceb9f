"""The numbers that define a hybrid's recurrent layers, from GGUF metadata or config.json."""

from dataclasses import dataclass

from headlong.errors import CheckpointError
from headlong.models.settings import Settings

_USUAL_INTERVAL = 4
"""Of the layers that attend, where the file does not say."""

_TILED = ("qwen35", "qwen35moe")
"""Architectures whose value heads llama.cpp's converter puts in another order."""


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """Sizes of a hybrid model's recurrent layers (gated delta net)."""

    layers: tuple[int, ...]
    """Which layers are of this kind; the others attend."""
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    is_tiled: bool = False
    """Whether the file has value heads in another order: one of every key head, then the next."""

    def __post_init__(self) -> None:
        heads = (self.num_key_heads, self.num_value_heads)
        are_sound = min(heads) >= 1 and max(heads) <= 1024 and heads[1] % heads[0] == 0
        sizes = (self.key_dim, self.value_dim)
        if not are_sound or not 1 <= min(sizes) <= max(sizes) <= 4096 or self.conv_width < 2:
            raise CheckpointError(
                f"Recurrent layers with {heads[1]} value heads of {self.value_dim}, {heads[0]} key "
                f"heads of {self.key_dim} and a convolution over {self.conv_width} rows.",
                "Value heads must share key heads evenly; the model's metadata is damaged.",
            )


def hugging_face_delta_net(keys: Settings) -> DeltaNetConfig | None:
    """Read the recurrent layers of a hybrid; None where all layers attend."""
    if not keys.has("linear_num_value_heads"):
        return None
    num_layers = keys.integer("num_hidden_layers")
    every = max(keys.integer("full_attention_interval", _USUAL_INTERVAL), 1)
    usual = ["linear_attention" if (i + 1) % every else "full" for i in range(num_layers)]
    kinds = keys.items("layer_types") or usual
    return DeltaNetConfig(
        layers=tuple(index for index, kind in enumerate(kinds) if kind == "linear_attention"),
        num_key_heads=keys.integer("linear_num_key_heads"),
        num_value_heads=keys.integer("linear_num_value_heads"),
        key_dim=keys.integer("linear_key_head_dim"),
        value_dim=keys.integer("linear_value_head_dim"),
        conv_width=keys.integer("linear_conv_kernel_dim", 4),
    )


def gguf_delta_net(keys: Settings, num_layers: int, architecture: str) -> DeltaNetConfig | None:
    """Read the recurrent layers of a hybrid; None where all layers attend."""
    if not keys.has("ssm.group_count") or not keys.has("full_attention_interval"):
        return None
    num_values = keys.integer("ssm.time_step_rank")
    every = max(keys.integer("full_attention_interval", _USUAL_INTERVAL), 1)
    usual = [(index + 1) % every != 0 for index in range(num_layers)]
    are_recurrent = keys.items("attention.recurrent_layers") or usual
    return DeltaNetConfig(
        layers=tuple(i for i, is_one in enumerate(are_recurrent[:num_layers]) if is_one),
        num_key_heads=keys.integer("ssm.group_count"),
        num_value_heads=num_values,
        key_dim=keys.integer("ssm.state_size"),
        value_dim=keys.integer("ssm.inner_size") // max(num_values, 1),
        conv_width=keys.integer("ssm.conv_kernel"),
        is_tiled=architecture in _TILED,
    )
