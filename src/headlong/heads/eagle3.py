"""The EAGLE-3 head format, as vLLM, SGLang, llama.cpp and `speculators` write and run it.

    g = fc(three tapped backbone states side by side)             once per verified row
    y = layer whose q/k/v read [input_layernorm(e), hidden_norm(g)]; the residual is g itself
    logits = lm_head(norm(y)) over a draft vocabulary; y is carried on as the next g

e is the embedding of the token that follows the row; the row keeps its own position. Dialects:
`norm_before_residual` takes hidden_norm(g) for the residual, `norm_output` carries norm(y) on,
`norm_before_fc` has a norm before fc, `fc_norm` one for each tapped state. Embedding and LM head
are the backbone's or the head's own.
In: `HeadWeights` of kind eagle3 and a backbone. Out: `Eagle3Head`, or a refusal with the reason.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headlong.errors import HeadError
from headlong.heads.decoder_layer import (
    LayerSpec,
    build_layer,
    expected_layer,
    layer_config,
    read_layer_spec,
)
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import (
    HEAD_REMEDY,
    HeadParts,
    HeadWeights,
    Shape,
    check_vocabulary,
    store_array,
)
from headlong.heads.layer_head import LayerHead
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.rope import divide_rope
from headlong.models.settings import Settings
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Norm
from headlong.ops.op_set import Array, RowBlocks, Rows

NUM_TAPS = 3
LAYER = "midlayer."

_TAPS = "eagle_aux_hidden_state_layer_ids"
_TAP_NORMS = tuple(f"fc_norm.{index}.weight" for index in range(NUM_TAPS))

ROPE_DIVISORS = "rope_freqs.weight"
"""How llama.cpp writes that slow rotary frequencies are slower still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Head(LayerHead):
    """A recursive head in EAGLE-3 format; `fc` is (H_head, 3 * H)."""

    input_norm: Norm | None  # (3 * H,)
    norms_output: bool = False
    tap_norm: Norm | None = None  # (H,), without weights of its own: fc has them

    @property
    def kind(self) -> str:
        """The name of this format."""
        return "eagle3"

    @property
    def carries_normed(self) -> bool:
        """Whether the next depth reads the layer's result after the final norm."""
        return self.norms_output

    def features(self, hidden: HiddenRows) -> Array:
        """Return the tapped states: (N, 3 * H)."""
        assert hidden.taps is not None, "the pass was not asked for taps"
        return hidden.taps

    def enter(self, features: Array, blocks: RowBlocks | None = None) -> Array:
        """Fuse the tapped states: (N, 3 * H) → (N, H_head)."""
        blocks = blocks or self.ops
        taps = features if self.input_norm is None else blocks.norm(features, self.input_norm)
        if self.tap_norm is not None:
            single = taps.reshape(-1, len(self.tap_norm.weight))
            taps = blocks.norm(single, self.tap_norm).reshape(*features.shape)
        return blocks.project(taps, self.fc)

    def layer_input(self, state: Array, rows: Rows) -> tuple[Array, Array]:
        """Return the states and, beside them, the tokens' embeddings: (N, H_head) each."""
        return state, self.ops.embed(self.embedding, rows.token_ids, self.embedding_scale)


def build_eagle3(weights: HeadWeights, backbone: Backbone) -> Eagle3Head:
    """Build the head, or refuse it when it does not fit the backbone."""
    keys = Settings(weights.config, Path(weights.source))
    _refuse_other_maths(weights, keys)
    spec = read_layer_spec(weights, backbone)
    _check_fusion(weights, spec, backbone.config)
    norms_taps = keys.flag("fc_norm") or any(name in weights.tensors for name in _TAP_NORMS)
    if norms_taps:
        weights = _with_norms_in_fc(weights, backbone)
    parts = HeadParts(weights, backbone.ops)
    parts.check(_expected(weights, spec, backbone.config, parts))
    for prefix in (LAYER, "layers.", "fc"):
        parts.refuse_leftovers(prefix)
    has_own_embedding = parts.has("embed_tokens.weight")
    if parts.has(ROPE_DIVISORS):
        spec = replace(spec, rope=divide_rope(spec.rope, parts.vector(ROPE_DIVISORS)))
    layer = build_layer(
        parts, LAYER, spec, beside_norm=parts.norm(f"{LAYER}input_layernorm", spec.norm_eps)
    )
    # The speculators format means norm_before_residual unless it says otherwise.
    if keys.flag("norm_before_residual", default=keys.has("speculators_model_type")):
        layer = replace(layer, mixer=replace(layer.attention, adds_to_normed=True))
    return Eagle3Head(
        backbone=backbone,
        fc=parts.linear("fc"),
        input_norm=parts.optional_norm("input_norm", spec.norm_eps),
        layer=layer,
        norm=parts.norm("norm", spec.norm_eps),
        norms_output=keys.flag("norm_output"),
        tap_norm=_plain_norm(backbone.config.hidden_size, spec.norm_eps) if norms_taps else None,
        lm_head=parts.linear("lm_head") if parts.has("lm_head.weight") else backbone.lm_head,
        embedding=parts.matrix("embed_tokens.weight") if has_own_embedding else backbone.embedding,
        embedding_scale=1.0 if has_own_embedding else backbone.embedding_scale,
        tap_layers=resolve_taps(keys, backbone.config.num_layers, weights.source),
        vocabulary=weights.vocabulary,
        num_bytes=parts.num_bytes,
        report=HeadReport((*parts.unused_tensors, *weights.repeated), quant=weights.quant),
    )


def make_eagle3_config(config: ModelConfig, draft_vocab_size: int) -> dict[str, Any]:
    """Return the config.json of a head with the backbone's sizes, as other engines expect it.

    Tap layers are left out on purpose: engines count them differently when given, and agree on
    (2, N // 2, N - 3) when not.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **layer_config(config),
        "target_hidden_size": config.hidden_size,
        "num_hidden_layers": 1,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.context_length,
        "draft_vocab_size": draft_vocab_size,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "norm_before_residual": False,
        "norm_before_fc": False,
    }


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """Return the layers whose inputs every engine taps by default."""
    return (2, num_layers // 2, num_layers - 3)


def named_taps(keys: Settings) -> tuple[Any, ...]:
    """Return the layers whose inputs a head's config says are tapped, empty if it says nothing.

    At the top level all engines count the layers whose inputs are tapped. Under `eagle_config`
    most writers count those whose outputs are; a first tap of 1 tells them from the others.
    """
    nested = tuple(keys.items(f"eagle_config.{_TAPS}"))
    if nested[:1] == (1,):
        nested = tuple(tap + 1 if isinstance(tap, int) else tap for tap in nested)
    return tuple(keys.items(_TAPS)) or nested


def resolve_taps(keys: Settings, num_layers: int, source: str) -> tuple[int, ...]:
    """Return the tap layers a head's config names, or the default ones; refuse impossible ones."""
    usual = default_taps(num_layers)
    taps = named_taps(keys) or usual
    # Some put outputs at the top level, which shows where they are those of the usual inputs.
    if taps == tuple(tap - 1 for tap in usual) and not keys.items(f"eagle_config.{_TAPS}"):
        taps = usual
    if not all(isinstance(tap, int) and not isinstance(tap, bool) for tap in taps):
        raise HeadError(f"{source}: {_TAPS} is {taps!r}.", "It must list three layer numbers.")
    is_ascending = all(low < high for low, high in pairwise(taps))
    if len(taps) != NUM_TAPS or not is_ascending or taps[0] < 0 or taps[-1] >= num_layers:
        raise HeadError(
            f"{source} taps the inputs of layers {list(taps)}; the backbone has {num_layers}.",
            f"An EAGLE-3 head needs {NUM_TAPS} different layers in ascending order; with fewer "
            "than 7 layers the usual ones coincide, so name them in config.json "
            f"({_TAPS}) or use a nextn head.",
        )
    return taps


def _refuse_other_maths(weights: HeadWeights, keys: Settings) -> None:
    switched_on = [name for name in weights.tensors if name.startswith("mask_hidden")]
    if keys.flag("parallel_drafting") or keys.integer("eagle_config.parallel_draft_step", 1) > 1:
        switched_on.append("parallel drafting")
    if not keys.flag("eagle_config.use_aux_hidden_state", default=True):
        switched_on.append("use_aux_hidden_state = false")
    if switched_on:
        raise HeadError(
            f"{weights.source} is of another EAGLE-3 dialect: {', '.join(switched_on)}.",
            f"Computed here are recursive heads with {NUM_TAPS} tapped states. {HEAD_REMEDY}",
        )
    num_layers = keys.integer("num_hidden_layers", 1)
    if num_layers != 1:
        raise HeadError(f"{weights.source} has {num_layers} layers.", "An EAGLE-3 head has 1.")


def _with_norms_in_fc(weights: HeadWeights, backbone: Backbone) -> HeadWeights:
    """Return the head with the weights of the tapped states' own norms as factors of fc."""
    parts = HeadParts(weights, backbone.ops)
    size = backbone.config.hidden_size
    parts.check(dict.fromkeys(_TAP_NORMS, (size,)))
    factors = np.concatenate([parts.vector(name) for name in _TAP_NORMS])
    tensors = {name: one for name, one in weights.tensors.items() if name not in _TAP_NORMS}
    if "fc.weight" in tensors:  # else it is missed below
        values = tensors["fc.weight"].to_float32() * factors
        tensors["fc.weight"] = store_array("fc.weight", values)
    return replace(weights, tensors=tensors)


def _plain_norm(size: int, eps: float) -> Norm:
    return Norm(np.ones(size, dtype=np.float32), eps)


def _check_fusion(weights: HeadWeights, spec: LayerSpec, config: ModelConfig) -> None:
    """Refuse a head whose `fc` was made for another number of taps or another backbone."""
    fc = weights.tensors.get("fc.weight")
    if fc is not None and fc.shape != (spec.hidden_size, NUM_TAPS * config.hidden_size):
        raise HeadError(
            f"{weights.source} fuses states with fc.weight {list(fc.shape)}; {NUM_TAPS} taps of "
            f"this backbone are {NUM_TAPS} × {config.hidden_size} numbers and the head's own state "
            f"{spec.hidden_size}.",
            HEAD_REMEDY,
        )


def _expected(
    weights: HeadWeights, spec: LayerSpec, config: ModelConfig, parts: HeadParts
) -> dict[str, Shape]:
    keys, hidden = Settings(weights.config, Path(weights.source)), spec.hidden_size
    num_drafted = check_vocabulary(weights, config.vocab_size)
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, NUM_TAPS * config.hidden_size),
        f"{LAYER}hidden_norm.weight": (hidden,),
        **expected_layer(spec, 2 * hidden, LAYER, parts.has),
        "norm.weight": (hidden,),
    }
    # A norm that config.json switches off is left alone, as engines do.
    places = [name for name in ("norm_before_fc", "eagle_config.norm_before_fc") if keys.has(name)]
    if any(map(keys.flag, places)) or (not places and parts.has("input_norm.weight")):
        shapes["input_norm.weight"] = (NUM_TAPS * config.hidden_size,)
    if parts.has(ROPE_DIVISORS):
        shapes[ROPE_DIVISORS] = (spec.head_dim // 2,)
    # What it leaves out it shares with the backbone, if that has the same width and all tokens.
    is_narrow = hidden != config.hidden_size
    if is_narrow or parts.has("embed_tokens.weight"):
        shapes["embed_tokens.weight"] = (config.vocab_size, hidden)
    if is_narrow or weights.vocabulary is not None or parts.has("lm_head.weight"):
        shapes["lm_head.weight"] = (num_drafted, hidden)
    return shapes
