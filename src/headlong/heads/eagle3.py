"""The EAGLE-3 head format, in the subset that vLLM, SGLang and llama.cpp all run.

    g = fc(three tapped backbone states side by side)             once per verified row
    y = layer whose q/k/v read [input_layernorm(e), hidden_norm(g)]; the residual is g itself
    logits = lm_head(norm(y)) over a draft vocabulary; y is carried on as the next g

e is the backbone's embedding of the token that follows the row; the row keeps its own position.
In: `HeadWeights` of kind eagle3 and a backbone. Out: `Eagle3Head`, or a refusal with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from headlong.arrays import FloatArray, IntArray
from headlong.cache.sequence_state import SequenceState
from headlong.errors import HeadError
from headlong.heads.decoder_layer import LayerSpec, build_layer, expected_layer, read_layer_spec
from headlong.heads.head import HeadReport
from headlong.heads.head_weights import (
    ASK_FOR_ANOTHER,
    HeadParts,
    HeadWeights,
    Shape,
    check_vocabulary,
)
from headlong.models.hidden import HiddenRows
from headlong.models.model_config import ModelConfig
from headlong.models.rows import append_rows
from headlong.models.settings import Settings
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Array, DraftBlocks, Layer, Linear, Matrix, Norm, Ops, Rows

NUM_TAPS = 3
LAYER = "midlayer."

_OTHER_MATHS = ("norm_before_residual", "norm_output", "fc_norm", "parallel_drafting")
"""Switches of other EAGLE-3 dialects; each changes what is computed."""


@dataclass(frozen=True, slots=True)
class Eagle3Head:
    """A recursive head in EAGLE-3 format."""

    backbone: Backbone
    fc: Linear  # (H_head, 3 * H)
    input_norm: Norm | None  # (3 * H,)
    layer: Layer
    norm: Norm
    lm_head: Linear  # (V_draft, H_head)
    embedding: Matrix | None  # (V, H_head); None takes the backbone's
    tap_layers: tuple[int, ...]
    vocabulary: IntArray | None  # (V_draft,)
    num_bytes: int
    report: HeadReport
    kind: str = "eagle3"

    @property
    def ops(self) -> Ops:
        """The backend it runs on."""
        return self.backbone.ops

    def make_cache(self) -> SequenceState:
        """Return an empty cache for one sequence."""
        return SequenceState([self.backbone.ops.make_state(self.layer.mixer)])

    def features(self, hidden: HiddenRows) -> Array:
        """Return the tapped states: (N, 3 * H)."""
        assert hidden.taps is not None, "the pass was not asked for taps"
        return hidden.taps

    def enter(self, features: Array) -> Array:
        """Fuse the tapped states: (N, 3 * H) → (N, H_head)."""
        ops = self.backbone.ops
        taps = features if self.input_norm is None else ops.norm(features, self.input_norm)
        return ops.project(taps, self.fc)

    def step(
        self, state: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run the layer over rows; return the states before the final norm: (N, H_head)."""
        ops = self.backbone.ops
        rows = append_rows(caches, token_ids)
        kv_layers = [cache.layers[0] for cache in caches]
        embedded = self._embed(rows)
        attended = ops.attention(state, self.layer.attention, kv_layers, rows, beside=embedded)
        return ops.gated_mlp(attended, self.layer.channel)

    def follow(
        self, features: Array, token_ids: Sequence[IntArray], caches: Sequence[SequenceState]
    ) -> Array:
        """Run over the rows of a backbone pass; return each sequence's last state: (S, H_head)."""
        rows = append_rows(caches, token_ids)
        kv_layers = [cache.layers[0] for cache in caches]
        state, embedded = self.enter(features), self._embed(rows)
        return self.backbone.ops.run_last(state, self.layer, kv_layers, rows, beside=embedded)

    def logits(self, state: Array) -> FloatArray:
        """Score the draft vocabulary: (N, H_head) → (N, V_draft)."""
        ops = self.backbone.ops
        return ops.to_host(ops.project(ops.norm(state, self.norm), self.lm_head))

    def draft_blocks(self) -> DraftBlocks:
        """Return what `step` and `logits` compute as one record."""
        own = self.embedding
        return DraftBlocks(
            embedding=self.backbone.embedding if own is None else own,
            embedding_scale=self.backbone.embedding_scale if own is None else 1.0,
            attention=self.layer.attention,
            mlp=self.layer.channel,
            fusion=None,
            norm=self.norm,
            lm_head=self.lm_head,
            carries_normed=False,
            vocabulary=self.vocabulary,
        )

    def _embed(self, rows: Rows) -> Array:
        if self.embedding is None:
            return self.backbone.embed(rows.token_ids)
        return self.backbone.ops.embed(self.embedding, rows.token_ids)


def build_eagle3(weights: HeadWeights, backbone: Backbone) -> Eagle3Head:
    """Build the head, or refuse it when it does not fit the backbone."""
    keys = Settings(weights.config, Path(weights.source))
    _refuse_other_maths(weights, keys)
    spec = read_layer_spec(weights, backbone)
    parts = HeadParts(weights, backbone.ops)
    _check_fusion(weights, spec, backbone.config)
    parts.check(_expected(weights, spec, backbone.config, parts))
    parts.refuse_leftovers(LAYER)
    parts.refuse_leftovers("layers.")
    has_own_embedding = spec.hidden_size != backbone.config.hidden_size
    return Eagle3Head(
        backbone=backbone,
        fc=parts.linear("fc"),
        input_norm=parts.optional_norm("input_norm", spec.norm_eps),
        layer=build_layer(
            parts, LAYER, spec, beside_norm=parts.norm(f"{LAYER}input_layernorm", spec.norm_eps)
        ),
        norm=parts.norm("norm", spec.norm_eps),
        lm_head=parts.linear("lm_head"),
        embedding=parts.matrix("embed_tokens.weight") if has_own_embedding else None,
        tap_layers=resolve_taps(keys, backbone.config.num_layers, weights.source),
        vocabulary=weights.vocabulary,
        num_bytes=parts.num_bytes,
        report=HeadReport(parts.unused_tensors, quant=weights.quant),
    )


def make_eagle3_config(config: ModelConfig, draft_vocab_size: int) -> dict[str, Any]:
    """Return the config.json of a head with the backbone's sizes, as other engines expect it.

    Tap layers are left out on purpose: engines count them differently when given, and agree on
    (2, N // 2, N - 3) when not.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.context_length,
        "vocab_size": config.vocab_size,
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


def resolve_taps(keys: Settings, num_layers: int, source: str) -> tuple[int, ...]:
    """Return the tap layers a head's config names, or the default ones; refuse impossible ones."""
    usual = default_taps(num_layers)
    name = "eagle_aux_hidden_state_layer_ids"
    holder = keys.under("eagle_config.") if keys.has("eagle_config") else keys
    taps = tuple(holder.items(name)) or usual
    # SGLang writes the layer whose output is tapped, everyone else the layer whose input is.
    if taps == tuple(tap - 1 for tap in usual):
        taps = usual
    if not all(isinstance(tap, int) and not isinstance(tap, bool) for tap in taps):
        raise HeadError(f"{source}: {name} is {taps!r}.", "It must list three layer numbers.")
    is_ascending = all(low < high for low, high in pairwise(taps))
    if len(taps) != NUM_TAPS or not is_ascending or taps[0] < 0 or taps[-1] >= num_layers:
        raise HeadError(
            f"{source} taps the inputs of layers {list(taps)}; the backbone has {num_layers}.",
            f"An EAGLE-3 head needs {NUM_TAPS} different layers in ascending order; with fewer "
            "than 7 layers the usual ones coincide, so name them in config.json "
            f"({name}) or use a nextn head.",
        )
    return taps


def _refuse_other_maths(weights: HeadWeights, keys: Settings) -> None:
    # The speculators format means norm_before_residual unless it says otherwise.
    is_speculators = keys.has("speculators_model_type")
    values = {"norm_before_residual": is_speculators} | dict(weights.config)
    switched_on = [name for name in _OTHER_MATHS if values.get(name)]
    switched_on += [name for name in weights.tensors if name.startswith(("fc_norm", "mask_hidden"))]
    if switched_on:
        raise HeadError(
            f"{weights.source} is of another EAGLE-3 dialect: {', '.join(switched_on)}.",
            "Only the dialect that vLLM, SGLang and llama.cpp share is computed here; export the "
            "head with norm_before_residual, norm_output, fc_norm and parallel_drafting off.",
        )
    num_layers = keys.integer("num_hidden_layers", 1)
    if num_layers != 1:
        raise HeadError(f"{weights.source} has {num_layers} layers.", "An EAGLE-3 head has 1.")


def _check_fusion(weights: HeadWeights, spec: LayerSpec, config: ModelConfig) -> None:
    """Refuse a head whose `fc` was made for another number of taps or another backbone."""
    fc = weights.tensors.get("fc.weight")
    if fc is not None and fc.shape != (spec.hidden_size, NUM_TAPS * config.hidden_size):
        raise HeadError(
            f"{weights.source} fuses states with fc.weight {list(fc.shape)}; {NUM_TAPS} taps of "
            f"this backbone are {NUM_TAPS} × {config.hidden_size} numbers and the head's own state "
            f"{spec.hidden_size}.",
            ASK_FOR_ANOTHER,
        )


def _expected(
    weights: HeadWeights, spec: LayerSpec, config: ModelConfig, parts: HeadParts
) -> dict[str, Shape]:
    hidden = spec.hidden_size
    num_drafted = check_vocabulary(weights, config.vocab_size)
    shapes: dict[str, Shape] = {
        "fc.weight": (hidden, NUM_TAPS * config.hidden_size),
        f"{LAYER}hidden_norm.weight": (hidden,),
        **expected_layer(spec, 2 * hidden, LAYER, parts.has),
        "norm.weight": (hidden,),
        "lm_head.weight": (num_drafted, hidden),
    }
    if weights.config.get("norm_before_fc") or parts.has("input_norm.weight"):
        shapes["input_norm.weight"] = (NUM_TAPS * config.hidden_size,)
    if hidden != config.hidden_size:
        # A head of another width cannot read the backbone's embeddings; it must bring its own.
        shapes["embed_tokens.weight"] = (config.vocab_size, hidden)
    return shapes
