"""The one transformer layer that most heads are made of, read from Hugging Face tensor names.

In:  a head's config and its checked tensors; the backbone's numbers stand in for absent ones.
Out: sizes, the tensors' expected shapes, and a `Layer` of the op set's blocks.
A Llama layer, with q/k/v biases (Qwen2) and q/k norms (Qwen3) where the file has them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headlong.errors import HeadError
from headlong.heads.head_weights import HEAD_REMEDY, HeadParts, HeadWeights, Shape
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.rope_scaling import read_rope_scaling
from headlong.models.settings import Settings
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, GatedMlp, Layer, Norm, Rope

ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}

MAX_HEAD_DIM = 4096
"""Several times the largest known; a damaged config must not make us reserve memory."""

_OPTIONAL_GROUPS = (
    ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    ("self_attn.o_proj.bias",),
    ("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    ("mlp.gate_proj.bias", "mlp.up_proj.bias"),
    ("mlp.down_proj.bias",),
)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Sizes and constants of a head's layer."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    activation: Literal["silu", "gelu_tanh"] = "silu"
    window: int | None = None
    """Positions that it looks back at, the own one included; None looks at all."""

    def shapes(self, input_size: int) -> dict[str, Shape]:
        """Return every tensor a layer may have, with its shape; q/k/v read `input_size` numbers."""
        hidden, inner, head_dim = self.hidden_size, self.intermediate_size, self.head_dim
        queries, keys = self.num_heads * head_dim, self.num_kv_heads * head_dim
        return {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, input_size),
            "self_attn.k_proj.weight": (keys, input_size),
            "self_attn.v_proj.weight": (keys, input_size),
            "self_attn.o_proj.weight": (hidden, queries),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.bias": (keys,),
            "self_attn.o_proj.bias": (hidden,),
            "self_attn.q_norm.weight": (head_dim,),
            "self_attn.k_norm.weight": (head_dim,),
            "mlp.gate_proj.bias": (inner,),
            "mlp.up_proj.bias": (inner,),
            "mlp.down_proj.bias": (hidden,),
        }


def read_layer_spec(weights: HeadWeights, backbone: Backbone) -> LayerSpec:
    """Read a head layer's numbers from its config; what it leaves out is as in the backbone."""
    ours = backbone.config
    keys = Settings(weights.config, Path(weights.source))
    num_heads = keys.integer("num_attention_heads", ours.num_heads)
    hidden_size = keys.integer("hidden_size", ours.hidden_size)
    is_like_ours = (hidden_size, num_heads) == (ours.hidden_size, ours.num_heads)
    usual_head_dim = ours.head_dim if is_like_ours else hidden_size // max(num_heads, 1)
    head_dim = keys.integer("head_dim", usual_head_dim)
    num_kv_heads = keys.integer("num_key_value_heads", ours.num_kv_heads)
    is_sound = min(num_heads, num_kv_heads) >= 1 and num_heads % num_kv_heads == 0
    if not is_sound or head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise HeadError(
            f"{weights.source} has {num_heads} attention heads of size {head_dim} that share "
            f"{num_kv_heads} key/value heads.",
            "They must share evenly and be of even size; its config.json is damaged.",
        )
    activation = keys.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise HeadError(
            f"{weights.source} uses the activation {activation!r}.",
            f"Known are {', '.join(ACTIVATIONS)}.",
        )
    norm_eps = keys.number("rms_norm_eps", ours.norm_eps)
    if not 0 <= norm_eps < 1:
        raise HeadError(
            f"{weights.source} has rms_norm_eps {norm_eps}.",
            "It must be from 0 to 1; fix config.json.",
        )
    return LayerSpec(
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size", ours.intermediate_size),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=norm_eps,
        rope=_read_rope(keys, head_dim, weights, backbone),
        activation=ACTIVATIONS[activation],
        window=_read_window(keys),
    )


def layer_config(config: ModelConfig) -> dict[str, Any]:
    """Return what config.json says of a layer with the backbone's sizes."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "vocab_size": config.vocab_size,
    }


def check_hidden_size(weights: HeadWeights, spec: LayerSpec, config: ModelConfig) -> None:
    """Refuse a layer of another width than the backbone's states it reads."""
    if spec.hidden_size != config.hidden_size:
        raise HeadError(
            f"{weights.source} was made for hidden states of {spec.hidden_size} numbers; the "
            f"backbone's have {config.hidden_size}.",
            HEAD_REMEDY,
        )


def expected_layer(
    spec: LayerSpec, input_size: int, prefix: str, has: Callable[[str], bool]
) -> dict[str, Shape]:
    """Return the tensors a layer must have; an optional group counts once one of it is there."""
    absent = {
        name
        for group in _OPTIONAL_GROUPS
        for name in group
        if not any(has(prefix + member) for member in group)
    }
    shapes = spec.shapes(input_size)
    return {prefix + name: shape for name, shape in shapes.items() if name not in absent}


def build_layer(
    parts: HeadParts, prefix: str, spec: LayerSpec, beside_norm: Norm | None = None
) -> Layer:
    """Build a layer from checked tensors; `beside_norm` is for EAGLE-3's doubled input."""
    eps = spec.norm_eps
    # In EAGLE-3 files input_layernorm belongs to the embedding, hidden_norm to the state.
    own_norm = "input_layernorm" if beside_norm is None else "hidden_norm"
    attention = Attention(
        norm=parts.norm(f"{prefix}{own_norm}", eps),
        query=parts.linear(f"{prefix}self_attn.q_proj"),
        key=parts.linear(f"{prefix}self_attn.k_proj"),
        value=parts.linear(f"{prefix}self_attn.v_proj"),
        output=parts.linear(f"{prefix}self_attn.o_proj"),
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rope=spec.rope,
        scale=spec.head_dim**-0.5,
        query_norm=parts.optional_norm(f"{prefix}self_attn.q_norm", eps),
        key_norm=parts.optional_norm(f"{prefix}self_attn.k_norm", eps),
        beside_norm=beside_norm,
        window=spec.window,
    )
    mlp = GatedMlp(
        norm=parts.norm(f"{prefix}post_attention_layernorm", eps),
        gate=parts.linear(f"{prefix}mlp.gate_proj"),
        up=parts.linear(f"{prefix}mlp.up_proj"),
        down=parts.linear(f"{prefix}mlp.down_proj"),
        activation=spec.activation,
    )
    return Layer(attention, mlp)


def _read_window(keys: Settings) -> int | None:
    """Return how far a head looks back whose only layer is said to be a sliding one."""
    if keys.items("layer_types")[:1] != ["sliding_attention"]:
        return None
    return max(keys.integer("sliding_window"), 1)


def _read_rope(keys: Settings, head_dim: int, weights: HeadWeights, backbone: Backbone) -> Rope:
    """Return the head's own rotary frequencies, else the backbone's.

    A head was trained with the base its config names, whatever the backbone uses.
    """
    nested = keys.under("rope_parameters.") if keys.has("rope_parameters") else keys
    if nested.has("rope_theta"):
        theta = nested.number("rope_theta")
        scaling = nested if nested is not keys else keys.under("rope_scaling.")
        with np.errstate(all="ignore"):  # results of damaged numbers are checked right below
            rope = make_rope(head_dim, theta, read_rope_scaling(scaling))
        if theta < 1 or not np.isfinite(rope.frequencies).all():
            raise HeadError(
                f"{weights.source} has rope_theta {theta} and a scaling that give no frequencies.",
                "The base must be 1 or more, and factors above 0; fix config.json.",
            )
        return rope
    return usual_rope(backbone, head_dim)


def usual_rope(backbone: Backbone, head_dim: int) -> Rope:
    """Return the frequencies of a head whose config names none, with attention heads so large.

    They are those that the backbone's layers with a full view really use, where these fit.
    """
    config = backbone.config
    if head_dim != config.head_dim or config.latent is not None:
        return make_rope(head_dim, config.rope_theta, config.rope_scaling)
    mixers = [layer.mixer for layer in backbone.layers]
    # Where layers have heads of two sizes, a head's are as large as the config's.
    blocks = [
        mixer
        for mixer in mixers
        if isinstance(mixer, Attention) and mixer.head_dim == backbone.config.head_dim
    ]
    whole = [block for block in blocks if block.window is None]
    return (whole or blocks)[-1].rope
