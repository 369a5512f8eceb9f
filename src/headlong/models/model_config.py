"""The numbers that define a backbone, the same record whatever file they came from."""

import math
from dataclasses import dataclass

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.delta_config import (
    DeltaNetConfig,
    gguf_delta_net,
    hugging_face_delta_net,
)
from headlong.models.experts_config import ExpertsConfig, gguf_experts, hugging_face_experts
from headlong.models.latent_config import LatentConfig, gguf_latent, hugging_face_latent
from headlong.models.rope_scaling import RopeScaling, read_gguf_scaling, read_rope_scaling
from headlong.models.settings import Settings
from headlong.weights.checkpoint import Checkpoint

_BOUNDS = {
    "num_layers": (1, 1024),
    "hidden_size": (1, 2**17),
    "intermediate_size": (1, 2**20),
    "num_heads": (1, 1024),
    "num_kv_heads": (1, 1024),
    "head_dim": (2, 4096),
    "context_length": (1, 2**31),
    "norm_eps": (0.0, 1.0),
    "rope_theta": (1.0, 1e15),
}
"""What no real model leaves; beyond it, metadata is damaged and would take memory or overflow."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of one backbone."""

    architecture: str
    """GGUF's name of it, which `models/registry.py` knows: llama, qwen2, qwen3, …"""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    """Positions a local layer looks back at, the own one included."""
    local_layers: frozenset[int] = frozenset()
    """Layers that look at a sliding window only; the others see everything."""
    local_rope_theta: float | None = None
    """Rotary base of the local layers, where it differs."""
    attention_scale: float | None = None
    """Multiplies query · key where it is not head_dim ** -0.5."""
    rotary_dim: int | None = None
    """Leading dimensions of each head that turn with the position, where not all do."""
    delta_net: DeltaNetConfig | None = None
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None
    """Sizes of latent attention, where it is of this kind; all heads then share one key."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise CheckpointError(
                    f"The model's {name} is {value}, not between {least:g} and {most:g}.",
                    "Its metadata is damaged; pull the model again.",
                )
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise CheckpointError(
                f"{self.num_heads} heads do not share {self.num_kv_heads} key/value heads evenly, "
                f"or the head size {self.head_dim} is odd.",
                "The model's metadata is damaged, or its attention is of a kind not known here.",
            )


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """Read a checkpoint's configuration, from GGUF metadata or from config.json."""
    embedding = checkpoint.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(
            f"{checkpoint.path} has no token embedding (token_embd.weight).",
            "It is not a whole language model; perhaps it holds a head or an adapter only.",
        )
    settings = Settings(checkpoint.metadata, checkpoint.path)
    if checkpoint.format == "gguf":
        return _from_gguf(
            settings.under(f"{checkpoint.architecture}."), checkpoint, embedding.shape
        )
    return _from_hugging_face(_text_part(settings), checkpoint, embedding.shape)


def _from_gguf(keys: Settings, checkpoint: Checkpoint, embedding: tuple[int, ...]) -> ModelConfig:
    num_heads = keys.integer("attention.head_count")
    hidden_size = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden_size // max(num_heads, 1))
    latent = gguf_latent(keys)
    rotary_dim = _checked_rotary_dim(keys.integer("rope.dimension_count", head_dim), head_dim)
    # llama.cpp counts the blocks of an MTP head among the layers.
    num_layers = keys.integer("block_count") - keys.integer("nextn_predict_layers", 0)
    # Models that have experts in all layers may not say what a dense one's inner size would be.
    expert_size = keys.integer("expert_feed_forward_length", 0)
    return ModelConfig(
        architecture=checkpoint.architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length", expert_size or None),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads) if latent is None else 1,
        head_dim=head_dim if latent is None else latent.head_dim,
        vocab_size=embedding[0],
        context_length=keys.integer("context_length"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10_000.0),
        rope_scaling=read_gguf_scaling(keys.under("rope.scaling.")),
        sliding_window=keys.integer("attention.sliding_window", 0) or None,
        rotary_dim=None if latent or rotary_dim == head_dim else rotary_dim,
        delta_net=gguf_delta_net(keys, num_layers, checkpoint.architecture),
        experts=gguf_experts(keys, is_usually_renormalised=latent is None),
        latent=latent,
    )


def _text_part(settings: Settings) -> Settings:
    """Return the text model's part of a config.json that also describes other modalities."""
    return settings.under("text_config.") if settings.has("text_config") else settings


def _from_hugging_face(
    keys: Settings, checkpoint: Checkpoint, embedding: tuple[int, ...]
) -> ModelConfig:
    known = "gelu_pytorch_tanh" if checkpoint.architecture == "gemma3" else "silu"
    activation = keys.text("hidden_activation", keys.text("hidden_act", known))
    if activation != known:
        raise ArchitectureError(
            f"The model's MLP uses {activation!r}.",
            f"{checkpoint.architecture} models use {known!r} here; this one is of another kind.",
        )
    num_heads = keys.integer("num_attention_heads")
    hidden_size = keys.integer("hidden_size")
    head_dim = keys.integer("head_dim", hidden_size // max(num_heads, 1))
    # transformers 5 moved rotary settings into one record, per kind of layer for Gemma3.
    rope = keys.under("rope_parameters.") if keys.has("rope_parameters") else keys
    local_rope_theta = keys.number("rope_local_base_freq", 0.0)
    if rope.has("full_attention"):
        local_rope_theta = rope.number("sliding_attention.rope_theta", 0.0)
        rope = rope.under("full_attention.")
    expert_size = keys.integer("moe_intermediate_size", 0)
    scaling = rope if keys.has("rope_parameters") else keys.under("rope_scaling.")
    latent = hugging_face_latent(keys, scaling)
    return ModelConfig(
        architecture=checkpoint.architecture,
        num_layers=keys.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size", expert_size or None),
        num_heads=num_heads,
        num_kv_heads=keys.integer("num_key_value_heads", num_heads) if latent is None else 1,
        head_dim=head_dim if latent is None else latent.head_dim,
        vocab_size=embedding[0],
        context_length=keys.integer("max_position_embeddings"),
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", 10_000.0),
        rope_scaling=read_rope_scaling(scaling),
        sliding_window=keys.integer("sliding_window", 0) or None,
        local_layers=_local_layers(keys),
        local_rope_theta=local_rope_theta or None,
        attention_scale=_attention_scale(keys),
        rotary_dim=None if latent else _rotary_dim(keys, rope, head_dim),
        delta_net=hugging_face_delta_net(keys),
        experts=hugging_face_experts(keys),
        latent=latent,
    )


def _rotary_dim(keys: Settings, rope: Settings, head_dim: int) -> int | None:
    share = rope.number("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0))
    rotary_dim = _checked_rotary_dim(int(head_dim * share), head_dim)
    return None if rotary_dim == head_dim else rotary_dim


def _checked_rotary_dim(rotary_dim: int, head_dim: int) -> int:
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise CheckpointError(
            f"{rotary_dim} of {head_dim} dimensions of a head are rotary.",
            "It must be an even number of them; the model's metadata is damaged.",
        )
    return rotary_dim


def _local_layers(keys: Settings) -> frozenset[int]:
    """Find the sliding-window layers in the three ways config.json has said it over the years."""
    num_layers = keys.integer("num_hidden_layers")
    if keys.has("layer_types"):
        kinds = enumerate(keys.items("layer_types"))
        return frozenset(index for index, kind in kinds if kind == "sliding_attention")
    if keys.has("sliding_window_pattern"):
        pattern = max(keys.integer("sliding_window_pattern"), 1)
        return frozenset(index for index in range(num_layers) if (index + 1) % pattern)
    if keys.flag("use_sliding_window"):
        return frozenset(range(keys.integer("max_window_layers", 0), num_layers))
    return frozenset()


def _attention_scale(keys: Settings) -> float | None:
    if not keys.has("query_pre_attn_scalar"):
        return None
    return 1 / math.sqrt(max(keys.number("query_pre_attn_scalar"), 1e-9))
