"""What Gemma 4's files say beside the usual numbers, from GGUF metadata or from config.json.

In:  a file's settings. Out: a `Gemma4Config`, and for GGUF the settings of its sliding layers, with
one number where the file has one for each layer.
"""

from dataclasses import dataclass
from typing import Any

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.settings import Settings

_BOUNDS = {
    "global_head_dim": (2, 4096),
    "num_global_kv_heads": (1, 1024),
    "num_shared_layers": (0, 1024),
    "per_layer_size": (0, 2**16),
    "wide_intermediate_size": (1, 2**20),
}

_USUAL_ROTARY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Gemma4Config:
    """Sizes that differ between layers, and parts that other models do not have."""

    global_head_dim: int
    """Of the layers that see everything; those with a sliding window have `head_dim`."""
    num_global_kv_heads: int
    rotary_share: float
    """How much of each head of those layers turns; GGUF files have a tensor for it instead."""
    num_shared_layers: int
    """The last so many layers read the keys and values of earlier ones."""
    wide_intermediate_size: int
    """Width of the MLP of these last layers."""
    per_layer_size: int
    """Numbers that every token has for each layer; 0 where the model has none."""
    may_lack_values: bool
    """Whether layers that see everything may use their keys as values."""
    logit_cap: float | None
    """Final logits become cap * tanh(logit / cap)."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise CheckpointError(
                    f"The model's {name} is {value}, not between {least} and {most}.",
                    "Its metadata is damaged; pull the model again.",
                )
        if self.global_head_dim % 2 or not 0 < self.rotary_share <= 1:
            raise CheckpointError(
                f"Layers that see everything have heads of {self.global_head_dim} numbers, of "
                f"which a share of {self.rotary_share:g} turns.",
                "The size must be even and the share above 0; the model's metadata is damaged.",
            )
        if self.logit_cap is not None and not self.logit_cap > 0:
            raise CheckpointError(
                f"Final logits are capped at {self.logit_cap:g}.",
                "The cap must be above 0; the model's metadata is damaged.",
            )


def of_sliding_layers(keys: Settings) -> Settings:
    """Return GGUF settings with the numbers of sliding layers, where a file has one for each."""
    kinds = keys.items("attention.sliding_window_pattern")
    first = kinds.index(True) if True in kinds else 0
    replaced: dict[str, Any] = {}
    for name in ("attention.head_count_kv", "feed_forward_length"):
        replaced[name] = _of_layer(keys, name, first if name.endswith("_kv") else 0)
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        replaced[name] = keys.integer(f"{name}_swa", keys.integer(name, 0))
    return keys.replaced(replaced)


def read_gguf_gemma4(keys: Settings) -> Gemma4Config:
    """Read what a GGUF file says; `keys` are the file's own, with numbers for each layer."""
    kinds = keys.items("attention.sliding_window_pattern")
    last_global = max((i for i, is_local in enumerate(kinds) if not is_local), default=0)
    return Gemma4Config(
        global_head_dim=keys.integer("attention.key_length"),
        num_global_kv_heads=_of_layer(keys, "attention.head_count_kv", last_global),
        rotary_share=1.0,
        num_shared_layers=keys.integer("attention.shared_kv_layers", 0),
        wide_intermediate_size=_of_layer(keys, "feed_forward_length", -1),
        per_layer_size=keys.integer("embedding_length_per_layer_input", 0),
        may_lack_values=True,
        logit_cap=keys.number("final_logit_softcapping", 0.0) or None,
    )


def read_hf_gemma4(keys: Settings) -> Gemma4Config:
    """Read what a config.json says."""
    if keys.flag("attention_bias") or keys.text("use_bidirectional_attention", "vision") == "all":
        raise ArchitectureError(
            "This Gemma 4 has biases in its attention, or attends to later tokens.",
            "Published models have neither; such a variant does not run here.",
        )
    wide = 2 if keys.flag("use_double_wide_mlp") else 1
    may_lack_values = keys.flag("attention_k_eq_v")
    num_kv_heads = keys.integer("num_key_value_heads")
    overrides = _layer_overrides(keys)
    head_dim = overrides.integer("head_dim", keys.integer("global_head_dim", 512))
    num_global_kv_heads = keys.integer("num_global_key_value_heads", num_kv_heads)
    return Gemma4Config(
        global_head_dim=head_dim,
        num_global_kv_heads=overrides.integer(
            "num_key_value_heads", num_global_kv_heads if may_lack_values else num_kv_heads
        ),
        rotary_share=keys.number(
            "rope_parameters.full_attention.partial_rotary_factor", _USUAL_ROTARY_SHARE
        ),
        num_shared_layers=keys.integer("num_kv_shared_layers", 0),
        wide_intermediate_size=wide * keys.integer("intermediate_size"),
        per_layer_size=keys.integer("hidden_size_per_layer_input", 256),
        may_lack_values=may_lack_values,
        logit_cap=keys.number("final_logit_softcapping", 0.0) or None,
    )


def _layer_overrides(keys: Settings) -> Settings:
    """Return what transformers 5 writes for single layers: all of one kind have the same."""
    kinds = keys.items("layer_types")
    place = kinds.index("full_attention") if "full_attention" in kinds else 0
    return keys.under(f"per_layer_config.{place}.")


def _of_layer(keys: Settings, name: str, layer: int) -> int:
    """Return a number that a file may give for each layer."""
    if not isinstance(keys.value(name), list):
        return keys.integer(name)
    numbers = keys.items(name)
    if not -len(numbers) <= layer < len(numbers) or type(numbers[layer]) is not int:
        raise CheckpointError(
            f"{name} gives no whole number for layer {layer}: it has {len(numbers)} numbers.",
            "The model's metadata is damaged; pull the model again.",
        )
    number: int = numbers[layer]
    return number
