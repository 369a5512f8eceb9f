"""Gemma 4 (text): two kinds of layers, and layers that read the keys and values of earlier ones.

Layers with a sliding window have smaller heads, and a rotary base of their own, than those that see
everything, whose heads turn in part only. Queries, keys and values have norms, attention is not
scaled, and a layer's result is multiplied by one number. The last layers of some models keep no
keys and values (`SharedAttention`). E2B and E4B add to every layer what the token itself brings
along (`PerLayerInput`); 26B-A4B has experts beside the MLP. Norms multiply as they are. Images and
sound are not read here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models import llama
from headlong.models.experts import build_experts
from headlong.models.gemma4_config import Gemma4Config
from headlong.models.model_config import ModelConfig
from headlong.models.rope import divide_rope, make_proportional_rope, make_rope
from headlong.models.transformer import Backbone, PerLayerEmbedding
from headlong.ops.blocks import (
    Attention,
    Experts,
    GatedMlp,
    Layer,
    Linear,
    Norm,
    PerLayerInput,
    Rope,
    SharedAttention,
)
from headlong.ops.op_set import Ops
from headlong.weights.weight_reader import WeightReader

LOCAL_ROPE_THETA = 10_000.0
"""Rotary base of the sliding layers where the file does not say."""


def build(config: ModelConfig, weights: WeightReader, ops: Ops) -> Backbone:
    """Build a Gemma 4 backbone from a checkpoint's tensors."""
    sizes = _sizes(config)
    frame = llama.build_frame(config, weights, ops, layer_builder(config, weights))
    return replace(
        frame,
        embedding_scale=config.hidden_size**0.5,
        per_layer=_build_per_layer(config, sizes, weights) if sizes.per_layer_size else None,
        logit_cap=sizes.logit_cap,
    )


def layer_builder(config: ModelConfig, weights: WeightReader) -> llama.LayerBuilder:
    """Return what builds one layer."""
    return _Builder(config, _sizes(config), weights).layer


def assistant_layers(
    config: ModelConfig, weights: WeightReader, sources: Mapping[bool, int]
) -> tuple[Layer, ...]:
    """Build the layers of an assistant, which read keys and values of the backbone's layers.

    `sources` has the backbone's layer that sliding ones (True) and the others (False) read.
    """
    builder = _Builder(config, _sizes(config), weights, sources)
    return tuple(builder.layer(index) for index in range(config.num_layers))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the layers with a sliding window, or those without, have in common."""

    head_dim: int
    num_kv_heads: int
    rope: Rope
    window: int | None


class _Builder:
    """Builds layers from the tensors of one checkpoint."""

    def __init__(
        self,
        config: ModelConfig,
        sizes: Gemma4Config,
        weights: WeightReader,
        sources: Mapping[bool, int] | None = None,
    ) -> None:
        self._config, self._sizes, self._weights = config, sizes, weights
        self._sources = sources
        local_rope = make_rope(config.head_dim, config.local_rope_theta or LOCAL_ROPE_THETA)
        self._local = _Kind(config.head_dim, config.num_kv_heads, local_rope, config.sliding_window)
        dim = sizes.global_head_dim
        rope = make_proportional_rope(
            dim, config.rope_theta, sizes.rotary_share, config.rope_scaling
        )
        divisors = weights.optional_vector("rope_freqs.weight", dim // 2)
        if divisors is not None:
            rope = divide_rope(rope, divisors)
        self._global = _Kind(dim, sizes.num_global_kv_heads, rope, None)

    def layer(self, index: int) -> Layer:
        """Build one layer."""
        prefix = f"blk.{index}."
        scale = self._weights.optional_vector(f"{prefix}layer_output_scale.weight", 1)
        return Layer(
            self._attention(index),
            self._channel(index),
            self._per_layer_input(index) if self._sizes.per_layer_size else None,
            1.0 if scale is None else float(scale[0]),
        )

    def _attention(self, index: int) -> Attention | SharedAttention:
        kind = self._kind(index)
        prefix, dim = f"blk.{index}.", kind.head_dim
        hidden_size, num_heads = self._config.hidden_size, self._config.num_heads
        shared = SharedAttention(
            norm=self._norm(f"{prefix}attn_norm"),
            query=self._linear(f"{prefix}attn_q", num_heads * dim, hidden_size),
            output=self._linear(f"{prefix}attn_output", hidden_size, num_heads * dim),
            num_heads=num_heads,
            num_kv_heads=kind.num_kv_heads,
            head_dim=dim,
            rope=kind.rope,
            scale=1.0,
            source=self._source(index),
            query_norm=self._norm(f"{prefix}attn_q_norm", dim),
            output_norm=self._norm(f"{prefix}post_attention_norm"),
            window=kind.window,
        )
        if self._sources is not None or shared.source != index:
            return shared
        key = self._linear(f"{prefix}attn_k", kind.num_kv_heads * dim, hidden_size)
        uses_keys = self._sizes.may_lack_values and kind is self._global
        if uses_keys and not self._weights.has(f"{prefix}attn_v.weight"):
            value = key  # before norm and rotary
        else:
            value = self._linear(f"{prefix}attn_v", kind.num_kv_heads * dim, hidden_size)
        return Attention(
            norm=shared.norm,
            query=shared.query,
            key=key,
            value=value,
            output=shared.output,
            num_heads=num_heads,
            num_kv_heads=kind.num_kv_heads,
            head_dim=dim,
            rope=kind.rope,
            scale=1.0,
            query_norm=shared.query_norm,
            key_norm=self._norm(f"{prefix}attn_k_norm", dim),
            value_norm=Norm(np.ones(dim, dtype=np.float32), self._config.norm_eps),
            output_norm=shared.output_norm,
            window=kind.window,
        )

    def _channel(self, index: int) -> GatedMlp | Experts:
        """Build the MLP, and around it the experts that some models have beside it."""
        config, sizes, prefix = self._config, self._config.experts, f"blk.{index}."
        if index >= self._first_shared > 0:
            config = replace(config, intermediate_size=self._sizes.wide_intermediate_size)
        mlp = replace(llama.build_mlp(config, self._weights, index), activation="gelu_tanh")
        output_norm = self._norm(f"{prefix}post_ffw_norm")
        if sizes is None or not self._weights.has(f"{prefix}ffn_gate_inp.weight"):
            return replace(mlp, output_norm=output_norm)
        experts = build_experts(config, sizes, self._weights, index, "pre_ffw_norm_2")
        # The router reads x at unit size, scaled number by number.
        scale = self._weights.vector(f"{prefix}ffn_gate_inp.scale", config.hidden_size)
        router_norm = Norm(scale * np.float32(config.hidden_size**-0.5), config.norm_eps)
        scales = self._weights.vector(f"{prefix}ffn_down_exps.scale", sizes.num_experts)
        return replace(
            experts,
            activation="gelu_tanh",
            router=replace(experts.router, norm=router_norm, scales=scales),
            shared=replace(mlp, output_norm=self._norm(f"{prefix}post_ffw_norm_1")),
            sum_norm=self._norm(f"{prefix}post_ffw_norm_2"),
            output_norm=output_norm,
        )

    def _per_layer_input(self, index: int) -> PerLayerInput:
        prefix, size = f"blk.{index}.", self._sizes.per_layer_size
        return PerLayerInput(
            gate=self._linear(f"{prefix}inp_gate", size, self._config.hidden_size),
            projection=self._linear(f"{prefix}proj", self._config.hidden_size, size),
            norm=self._norm(f"{prefix}post_norm"),
            first=index * size,
        )

    @property
    def _first_shared(self) -> int:
        return self._config.num_layers - self._sizes.num_shared_layers

    def _kind(self, index: int) -> _Kind:
        return self._local if index in self._config.local_layers else self._global

    def _source(self, index: int) -> int:
        """Return the layer whose keys and values one reads: its own, or the last of its kind."""
        if self._sources is not None:
            return self._sources[index in self._config.local_layers]
        if index < self._first_shared:
            return index
        kind = self._kind(index)
        sources = [i for i in range(self._first_shared) if self._kind(i) is kind]
        if not sources:
            raise CheckpointError(
                f"Layer {index} is to read keys and values of an earlier layer of its kind, but "
                f"none of the first {self._first_shared} layers is.",
                "The model's metadata is damaged; pull the model again.",
            )
        return sources[-1]

    def _norm(self, name: str, size: int | None = None) -> Norm:
        size = size or self._config.hidden_size
        return llama.build_norm(self._config, self._weights, f"{name}.weight", size)

    def _linear(self, name: str, outputs: int, inputs: int) -> Linear:
        return Linear(self._weights.matrix(f"{name}.weight", (outputs, inputs)))


def _build_per_layer(
    config: ModelConfig, sizes: Gemma4Config, weights: WeightReader
) -> PerLayerEmbedding:
    size = sizes.per_layer_size
    columns, hidden_size = config.num_layers * size, config.hidden_size
    projection = weights.matrix("per_layer_model_proj.weight", (columns, hidden_size))
    return PerLayerEmbedding(
        table=weights.table("per_layer_token_embd.weight", (config.vocab_size, columns)),
        table_scale=size**0.5,
        projection=Linear(projection),
        projection_scale=hidden_size**-0.5,
        norm=llama.build_norm(config, weights, "per_layer_proj_norm.weight", size),
    )


def _sizes(config: ModelConfig) -> Gemma4Config:
    sizes = config.gemma4
    if sizes is None or (config.local_layers and config.sliding_window is None):
        raise ArchitectureError(
            "This Gemma 4 lacks the sizes of its layers, or the window of its sliding ones.",
            "Its metadata is damaged; pull the model again.",
        )
    return sizes
