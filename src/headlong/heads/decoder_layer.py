"""The one transformer layer that most heads are made of, read from Hugging Face tensor names.

In:  a head's config and its checked tensors; the backbone's numbers stand in for absent ones.
Out: sizes, the tensors' expected shapes, a `Layer` of the op set's blocks, and `LayerHead`, which
     runs one layer again for every depth.
A Llama layer, with q/k/v biases (Qwen2) and q/k norms (Qwen3) where the file has them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState, make_sequence_state
from headlong.errors import HeadError
from headlong.heads.draft_vocabulary import DraftVocabulary
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import ASK_FOR_ANOTHER, HeadParts, HeadWeights, Shape
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.rope import make_rope
from headlong.models.rope_scaling import read_rope_scaling
from headlong.models.rows import append_rows
from headlong.models.settings import Settings
from headlong.models.transformer import Backbone
from headlong.ops.blocks import (
    Attention,
    DraftBlocks,
    Fusion,
    GatedMlp,
    Layer,
    Linear,
    Matrix,
    Norm,
    Rope,
)
from headlong.ops.op_set import Array, Ops, Rows

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHead(ABC):
    """A recursive head of one layer; formats differ in what the layer reads and what is carried."""

    backbone: Backbone
    fc: Linear
    layer: Layer
    norm: Norm
    lm_head: Linear  # (V_draft, H)
    embedding: Matrix  # (V, H), the backbone's unless the head has its own
    embedding_scale: float
    vocabulary: IntArray | None  # (V_draft,)
    num_bytes: int
    report: HeadReport
    tap_layers: tuple[int, ...] = ()
    """Backbone layers whose inputs it reads; empty when it reads the last hidden state."""
    fewer_tokens: DraftVocabulary | None = None
    """What it may draft from instead of its vocabulary, where a text's tokens are among them."""

    @property
    def ops(self) -> Ops:
        """The backend it runs on."""
        return self.backbone.ops

    @property
    def carries_normed(self) -> bool:
        """Whether the next depth reads the layer's result after the final norm."""
        return False

    @property
    def fusion(self) -> Fusion | None:
        """How state and embedding become one input; None when the layer reads both."""
        return None

    @property
    @abstractmethod
    def kind(self) -> str:
        """ "eagle3" or "nextn"."""

    @abstractmethod
    def features(self, hidden: HiddenRows) -> Array:
        """Return what it reads of the rows of a backbone pass: (N, F)."""

    @abstractmethod
    def enter(self, features: Array) -> Array:
        """Turn features into the states the first step reads."""

    @abstractmethod
    def layer_input(self, state: Array, rows: Rows) -> tuple[Array, Array | None]:
        """Return what the layer reads, and what it reads beside that."""

    def with_fewer_tokens(self) -> Self | None:
        """Return this head drafting from fewer tokens; layer and cache stay the same."""
        fewer = self.fewer_tokens
        if fewer is None:
            return None
        return replace(self, vocabulary=fewer.ids, lm_head=fewer.lm_head, fewer_tokens=None)

    def make_cache(self) -> SequenceState:
        """Return an empty cache for one sequence."""
        return make_sequence_state(self.ops, [self.layer])

    def step(
        self, state: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run the layer over rows; return the states to carry on: (N, H)."""
        rows = append_rows(caches, token_ids)
        kv_layers = [cache.layers[0] for cache in caches]
        x, beside = self.layer_input(state, rows)
        if self.layer.mixer is not None:
            x = self.ops.mix(x, self.layer.mixer, kv_layers, rows, beside=beside)
        if self.layer.channel is not None:
            x = self.ops.transform(x, self.layer.channel)
        return self._carried(x)

    def follow(
        self, features: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run over the rows of a backbone pass; return each sequence's last state: (S, H)."""
        rows = append_rows(caches, token_ids)
        kv_layers = [cache.layers[0] for cache in caches]
        x, beside = self.layer_input(self.enter(features), rows)
        return self._carried(self.ops.run_last(x, self.layer, kv_layers, rows, beside=beside))

    def logits(self, state: Array) -> FloatArray:
        """Score the draft vocabulary: (N, H) → (N, V_draft)."""
        normed = state if self.carries_normed else self.ops.norm(state, self.norm)
        return self.ops.to_host(self.ops.project(normed, self.lm_head))

    def draft_blocks(self) -> DraftBlocks:
        """Return what `step` and `logits` compute as one record.

        A draft never begins at position 0, so what families do to the first embedding is no part.
        """
        return DraftBlocks(
            embedding=self.embedding,
            embedding_scale=self.embedding_scale,
            layer=self.layer,
            fusion=self.fusion,
            norm=self.norm,
            lm_head=self.lm_head,
            carries_normed=self.carries_normed,
            vocabulary=self.vocabulary,
        )

    def _carried(self, x: Array) -> Array:
        return self.ops.norm(x, self.norm) if self.carries_normed else x


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
            ASK_FOR_ANOTHER,
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
    )
    mlp = GatedMlp(
        norm=parts.norm(f"{prefix}post_attention_layernorm", eps),
        gate=parts.linear(f"{prefix}mlp.gate_proj"),
        up=parts.linear(f"{prefix}mlp.up_proj"),
        down=parts.linear(f"{prefix}mlp.down_proj"),
        activation=spec.activation,
    )
    return Layer(attention, mlp)


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
    if head_dim == backbone.config.head_dim and backbone.config.latent is None:
        return global_rope(backbone)
    return make_rope(head_dim, backbone.config.rope_theta, backbone.config.rope_scaling)


def global_rope(backbone: Backbone) -> Rope:
    """Return the frequencies that the backbone's layers with a full view really use."""
    mixers = [layer.mixer for layer in backbone.layers]
    blocks = [mixer for mixer in mixers if isinstance(mixer, Attention)]
    whole = [block for block in blocks if block.window is None]
    return (whole or blocks)[-1].rope
