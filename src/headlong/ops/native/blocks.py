"""Specs translated into the kernels' blocks, at their first use, and kept as long as the specs are.

In:  specs of `blocks.py`. Out: what C++ runs. A field of a spec that is not translated here is
ignored, and only a comparison with numpy shows it.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from headlong.arrays import FloatArray
from headlong.ops import _native
from headlong.ops.blocks import (
    Attending,
    Channel,
    Expert,
    Experts,
    GatedDeltaNet,
    GatedMlp,
    LatentAttention,
    Layer,
    Linear,
    Mamba2,
    Mixer,
    Norm,
    PerLayerInput,
    Rope,
    Router,
    SharedAttention,
)
from headlong.ops.calibration import EDGES, Calibration
from headlong.ops.draft_blocks import DraftBlocks, Fusion
from headlong.ops.layer_state import LayerState

_T = TypeVar("_T")


class NativeBlocks:
    """The blocks made so far for one engine."""

    def __init__(self, engine: _native.Engine) -> None:
        self._engine = engine
        # By id, since specs hold arrays and cannot be hashed; an entry goes when its spec does.
        self._translated: dict[int, tuple[object, Any]] = {}

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return an empty state: keys and values are 16-bit integers with scales."""
        if isinstance(mixer, Attending):
            return self._engine.make_kv_layer(mixer.num_kv_heads, mixer.head_dim, mixer.value_dim)
        if isinstance(mixer, LatentAttention):
            return self._engine.make_kv_layer(1, mixer.rank + mixer.rotary_dim, mixer.rank)
        return self._engine.make_recurrent_state(_sizes(mixer), len(mixer.convolution))

    def stack(self, layers: Sequence[Layer]) -> _native.Stack:
        """Return layers to be run in one call."""
        return self._translate(layers, lambda: self._stack(layers))

    def layer(self, layer: Layer) -> _native.Stack:
        """Return one layer to be run by itself."""
        return self._translate(layer, lambda: self._stack([layer]))

    def mixer(self, block: Mixer) -> _native.Stack:
        """Return a mixer to be run by itself."""
        return self._translate(block, lambda: self._stack([Layer(block, None)]))

    def channel(self, block: Channel) -> _native.Stack:
        """Return a channel part to be run by itself."""
        return self._translate(block, lambda: self._stack([Layer(None, block)]))

    def _translate(self, spec: object, make: Callable[[], _T]) -> _T:
        found = self._translated.get(id(spec))
        if found is None:
            found = self._translated[id(spec)] = (self._watch(spec), make())
        translated: _T = found[1]
        return translated

    def _watch(self, spec: object) -> object:
        """Return what keeps an entry's id its spec's own; tuples cannot be watched, and stay."""
        if isinstance(spec, tuple):
            return spec
        translated, key = self._translated, id(spec)
        return weakref.ref(spec, lambda _: translated.pop(key, None))

    def norm(self, norm: Norm) -> _native.Norm:
        """Return a norm."""
        return self._translate(norm, lambda: _native.Norm(_vector(norm.weight), norm.eps))

    def _optional_norm(self, norm: Norm | None) -> _native.Norm | None:
        return None if norm is None else self.norm(norm)

    def linear(self, linear: Linear) -> _native.Linear:
        """Return a projection."""
        bias = None if linear.bias is None else _vector(linear.bias)
        return self._translate(linear, lambda: _native.Linear(linear.weight, bias))

    def _optional_linear(self, linear: Linear | None) -> _native.Linear | None:
        return None if linear is None else self.linear(linear)

    def calibration(self, calibration: Calibration | None) -> _native.Calibration | None:
        """Return a calibration of probabilities."""
        if calibration is None:
            return None
        return self._translate(calibration, lambda: _native.Calibration(EDGES, calibration.chances))

    def _rope(self, rope: Rope) -> _native.Rope:
        return self._translate(
            rope, lambda: _native.Rope(_vector(rope.frequencies), rope.amplitude)
        )

    def _mixer(self, spec: Mixer) -> _native.Mixer:
        if isinstance(spec, LatentAttention):
            return self._latent_attention(spec)
        if isinstance(spec, Mamba2):
            return self._mamba(spec)
        if isinstance(spec, GatedDeltaNet):
            return self._delta_net(spec)
        return self._attention(spec)

    def _latent_attention(self, spec: LatentAttention) -> _native.LatentAttention:
        block = _native.LatentAttention()
        block.norm, block.latent_norm = self.norm(spec.norm), self.norm(spec.latent_norm)
        block.query_down = self._optional_linear(spec.query_down)
        block.query_norm = self._optional_norm(spec.query_norm)
        block.query, block.latent = self.linear(spec.query), self.linear(spec.latent)
        block.key_up, block.value_up = self.linear(spec.key_up), self.linear(spec.value_up)
        block.output = self.linear(spec.output)
        block.num_heads, block.scale = spec.num_heads, spec.scale
        block.plain_dim, block.value_dim = spec.plain_dim, spec.value_dim
        block.rope = self._rope(spec.rope)
        return block

    def _delta_net(self, spec: GatedDeltaNet) -> _native.GatedDeltaNet:
        vectors = [_vector(one) for one in (spec.convolution, spec.decay_rate, spec.decay_bias)]
        block = _native.GatedDeltaNet(self._engine, _sizes(spec), *vectors)
        self._fill(block, spec, spec.decay)
        block.update, block.head_norm = self.linear(spec.update), self.norm(spec.head_norm)
        block.tiles_output = spec.tiles_output
        block.settle()
        return block

    def _mamba(self, spec: Mamba2) -> _native.Mamba2:
        vectors = [_vector(one) for one in (spec.convolution, spec.decay_rate, spec.step_bias)]
        block = _native.Mamba2(self._engine, _sizes(spec), *vectors)
        self._fill(block, spec, spec.step)
        block.group_norm = self.norm(spec.group_norm)
        block.set_steps(_vector(spec.convolution_bias), _vector(spec.skip), spec.step_limits)
        return block

    def _fill(
        self, block: _native.RecurrentMixer, spec: GatedDeltaNet | Mamba2, decay: Linear
    ) -> None:
        block.norm, block.mixed = self.norm(spec.norm), self.linear(spec.mixed)
        block.gate, block.decay = self.linear(spec.gate), self.linear(decay)
        block.output = self.linear(spec.output)

    def _attention(self, spec: Attending) -> _native.Attention:
        block = _native.Attention()
        block.norm = self.norm(spec.norm)
        block.query, block.output = self.linear(spec.query), self.linear(spec.output)
        block.num_heads, block.num_kv_heads = spec.num_heads, spec.num_kv_heads
        block.head_dim, block.scale = spec.head_dim, spec.scale
        block.value_dim, block.value_scale = spec.value_dim, spec.value_scale
        if spec.sinks is not None:
            block.set_sinks(_vector(spec.sinks))
        block.window = spec.window or 0
        block.rope = self._rope(spec.rope)
        block.query_norm = self._optional_norm(spec.query_norm)
        block.output_norm = self._optional_norm(spec.output_norm)
        if isinstance(spec, SharedAttention):
            block.ahead = spec.ahead
            return block
        block.key, block.value = self.linear(spec.key), self.linear(spec.value)
        block.key_norm = self._optional_norm(spec.key_norm)
        block.value_norm = self._optional_norm(spec.value_norm)
        block.beside_norm = self._optional_norm(spec.beside_norm)
        block.adds_to_normed = spec.adds_to_normed
        block.gate = self._optional_linear(spec.gate)
        return block

    def _channel(self, spec: Channel) -> _native.Channel:
        if isinstance(spec, PerLayerInput):
            gate, projection = self.linear(spec.gate), self.linear(spec.projection)
            return _native.PerLayerInput(gate, projection, self.norm(spec.norm), spec.first)
        return self._experts(spec) if isinstance(spec, Experts) else self._mlp(spec)

    def _mlp(self, spec: GatedMlp) -> _native.GatedMlp:
        output_norm = self._optional_norm(spec.output_norm)
        return _native.GatedMlp(
            self.norm(spec.norm), self._parts_of_mlp(spec), spec.activation, output_norm
        )

    def _parts_of_mlp(self, spec: GatedMlp | Expert) -> "_native.MlpParts":
        return (self._optional_linear(spec.gate), self.linear(spec.up), self.linear(spec.down))

    def _experts(self, spec: Experts) -> _native.Experts:
        experts = [self._parts_of_mlp(expert) for expert in spec.experts]
        block = _native.Experts(
            self.norm(spec.norm), self._router(spec.router), experts, spec.activation
        )
        if spec.shared is not None:
            block.shared = self._mlp(spec.shared)
            block.shares_norm = spec.shared.norm is spec.norm
        block.shared_gate = self._optional_linear(spec.shared_gate)
        block.reduce = self._optional_linear(spec.reduce)
        block.expand = self._optional_linear(spec.expand)
        block.sum_norm = self._optional_norm(spec.sum_norm)
        block.output_norm = self._optional_norm(spec.output_norm)
        return block

    def _router(self, spec: Router) -> _native.Router:
        scales = None if spec.scales is None else _vector(spec.scales)
        bias = None if spec.choice_bias is None else _vector(spec.choice_bias)
        linear, norm = self.linear(spec.linear), self._optional_norm(spec.norm)
        router = _native.Router(linear, spec.scoring, scales, bias, norm)
        router.num_chosen, router.num_groups = spec.num_chosen, spec.num_groups
        router.num_chosen_groups = spec.num_chosen_groups
        router.is_renormalised = spec.is_renormalised
        return router

    def draft_head(self, blocks: DraftBlocks) -> _native.DraftHead:
        """Return a head that makes whole drafts."""
        return self._translate(blocks, lambda: self._draft_head(blocks))

    def _draft_head(self, blocks: DraftBlocks) -> _native.DraftHead:
        fusion = blocks.fusion
        mixer, channel, _, _ = self._parts(blocks.layer)
        return _native.DraftHead(
            blocks.embedding,
            blocks.embedding_scale,
            mixer,
            channel,
            None if fusion is None else self._fusion(fusion),
            self.norm(blocks.norm),
            self.linear(blocks.lm_head),
            blocks.carries_normed,
            blocks.logit_cap or 0.0,
            blocks.vocabulary,
        )

    def _fusion(self, fusion: Fusion) -> _native.Fusion:
        return _native.Fusion(
            self.norm(fusion.embedding_norm),
            self.norm(fusion.state_norm),
            self.linear(fusion.fc),
            fusion.is_state_first,
        )

    def _stack(self, layers: Sequence[Layer]) -> _native.Stack:
        return _native.Stack([self._parts(layer) for layer in layers])

    def _parts(
        self, layer: Layer
    ) -> tuple[_native.Mixer | None, _native.Channel | None, _native.Channel | None, float]:
        return (
            None if layer.mixer is None else self._mixer(layer.mixer),
            None if layer.channel is None else self._channel(layer.channel),
            None if layer.second is None else self._channel(layer.second),
            layer.scale,
        )


def _sizes(spec: GatedDeltaNet | Mamba2) -> tuple[int, int, int, int]:
    if isinstance(spec, Mamba2):
        return spec.num_groups, spec.num_heads, spec.state_size, spec.head_dim
    return spec.num_key_heads, spec.num_value_heads, spec.key_dim, spec.value_dim


def _vector(values: FloatArray) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float32)
