"""Random weights and blocks in every stored type, for the tests of the native backend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from headlong.arrays import FloatArray
from headlong.errors import BackendError
from headlong.models.rope import make_rope
from headlong.ops.blocks import (
    Attention,
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
    Router,
)
from headlong.ops.layer_state import KVLayer, has_positions
from headlong.ops.native.ops import NativeOps
from headlong.ops.op_set import Ops, Rows, Span
from headlong.weights.tensors import StoredTensor

INSTRUCTION_SETS = ("portable", "avx2", "avx512")
RECURRENT = ("delta", "mamba")
RecurrentMixer: TypeAlias = GatedDeltaNet | Mamba2
EXPERT_KINDS = ("qwen", "deepseek", "nemotron", "gemma")
"""Families whose mixtures of experts differ."""
NESTED_TYPES = ("Q4_K", "Q5_K", "Q6_K")
EXACT_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *NESTED_TYPES, "F16", "BF16", "F32")


def native_ops(instruction_set: str, threads: int = 2) -> NativeOps:
    """Return the backend on one set of kernels; skip the test where the processor lacks it."""
    try:
        return NativeOps(threads, instruction_set)
    except BackendError as error:
        pytest.skip(error.problem)


def random(seed: int, *shape: int) -> FloatArray:
    """Return reproducible normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def stored(type_name: str, values: FloatArray) -> StoredTensor:
    """Return a matrix as a file would hold it."""
    kind = GGMLQuantizationType[type_name]
    data = np.ascontiguousarray(quantize(values, kind)).view(np.uint8).reshape(len(values), -1)
    return StoredTensor("test.weight", values.shape, kind, data)


def random_matrix(type_name: str, seed: int, outputs: int, inputs: int) -> StoredTensor:
    """Return a matrix of any type; one in blocks of 256 numbers has eight times the inputs."""
    if type_name not in NESTED_TYPES:
        return stored(type_name, random(seed, outputs, inputs))
    kind = GGMLQuantizationType[type_name]
    num_numbers, num_bytes = GGML_QUANT_SIZES[kind]
    num_blocks = 8 * inputs // num_numbers
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (outputs, num_blocks, num_bytes), dtype=np.uint8)
    # The shared scales, where the type has them; levels and own scales may be anything.
    shared = rng.uniform(0.001, 0.002, (outputs, num_blocks, 2)).astype("<f2").view(np.uint8)
    if type_name == "Q6_K":
        data[..., -2:] = shared[..., :2]
    else:
        data[..., :4] = shared
    return StoredTensor("test.weight", (outputs, 8 * inputs), kind, data.reshape(outputs, -1))


@dataclass(frozen=True)
class Parts:
    """Makes blocks for one backend; the same seed gives the same numbers for every backend."""

    ops: Ops
    type_name: str
    hidden_size: int = 64
    head_dim: int = 32
    num_heads: int = 6
    num_kv_heads: int = 2

    def linear(self, seed: int, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
        """Return a random projection that keeps magnitudes."""
        values = random(seed, outputs, inputs) / np.float32(inputs**0.5)
        matrix = self.ops.matrix(stored(self.type_name, values))
        return Linear(matrix, random(seed + 1, outputs) if bias else None)

    def norm(self, seed: int, size: int | None = None) -> Norm:
        """Return a random norm."""
        return Norm(np.float32(1) + random(seed, size or self.hidden_size) / np.float32(10), 1e-5)

    def delta_net(self, *, key_dim: int = 24, value_dim: int = 32) -> GatedDeltaNet:
        """Return a gated delta net of four value heads that share two key heads."""
        hidden, num_keys, num_values = self.hidden_size, 2, 4
        value_size = num_values * value_dim
        num_channels = 2 * num_keys * key_dim + value_size
        return GatedDeltaNet(
            norm=self.norm(30),
            mixed=self.linear(31, num_channels, hidden),
            gate=self.linear(33, value_size, hidden),
            update=self.linear(35, num_values, hidden),
            decay=self.linear(37, num_values, hidden),
            convolution=random(39, 4, num_channels) / np.float32(2),
            decay_rate=np.exp(random(40, num_values) - 1).astype(np.float32),
            decay_bias=random(41, num_values),
            head_norm=self.norm(42, value_dim),
            output=self.linear(43, hidden, value_size),
            num_key_heads=num_keys,
            num_value_heads=num_values,
            key_dim=key_dim,
            value_dim=value_dim,
        )

    def mamba(self, *, key_dim: int = 24, value_dim: int = 32) -> Mamba2:
        """Return a Mamba-2 mixer of four heads in two groups, with limits that some steps meet."""
        hidden, num_groups, num_heads = self.hidden_size, 2, 4
        value_size = num_heads * value_dim
        num_channels = 2 * num_groups * key_dim + value_size
        return Mamba2(
            norm=self.norm(30),
            mixed=self.linear(31, num_channels, hidden),
            gate=self.linear(33, value_size, hidden),
            step=self.linear(35, num_heads, hidden),
            convolution=random(39, 4, num_channels) / np.float32(2),
            convolution_bias=random(44, num_channels) / np.float32(2),
            decay_rate=np.exp(random(40, num_heads) - 1).astype(np.float32),
            step_bias=random(41, num_heads),
            skip=random(45, num_heads),
            group_norm=self.norm(42, value_size),
            output=self.linear(43, hidden, value_size),
            num_groups=num_groups,
            num_heads=num_heads,
            state_size=key_dim,
            head_dim=value_dim,
            step_limits=(0.1, 1.5),
        )

    def recurrent(self, kind: str, *, key_dim: int = 24, value_dim: int = 32) -> RecurrentMixer:
        """Return a recurrent mixer of a kind in `RECURRENT`."""
        make = self.delta_net if kind == "delta" else self.mamba
        return make(key_dim=key_dim, value_dim=value_dim)

    def attention(self, *, is_beside: bool = False, window: int | None = None) -> Attention:
        """Return an attention block; with `is_beside` it has every optional part as well."""
        hidden, dim = self.hidden_size, self.head_dim
        inputs = 2 * hidden if is_beside else hidden
        queries, keys = self.num_heads * dim, self.num_kv_heads * dim
        return Attention(
            norm=self.norm(1),
            query=self.linear(2, queries, inputs, bias=is_beside),
            key=self.linear(4, keys, inputs, bias=is_beside),
            value=self.linear(6, keys, inputs, bias=is_beside),
            output=self.linear(8, hidden, queries),
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=dim,
            rope=make_rope(dim, 10_000.0),
            scale=dim**-0.5,
            query_norm=self.norm(10, dim) if is_beside else None,
            key_norm=self.norm(11, dim) if is_beside else None,
            beside_norm=self.norm(12) if is_beside else None,
            adds_to_normed=is_beside,
            output_norm=self.norm(13) if is_beside else None,
            window=window,
        )

    def sunk_attention(self, *, value_dim: int = 24, window: int | None = None) -> Attention:
        """Return attention with sinks, and values of another size than keys."""
        return replace(
            self.attention(window=window),
            value=self.linear(6, self.num_kv_heads * value_dim, self.hidden_size),
            output=self.linear(8, self.hidden_size, self.num_heads * value_dim),
            value_size=value_dim,
            value_scale=0.7,
            sinks=2 * random(14, self.num_heads),
        )

    def latent_attention(
        self, *, rank: int = 64, plain_dim: int = 32, value_dim: int = 48, is_low: bool = True
    ) -> LatentAttention:
        """Return latent attention with 16 rotary dimensions; `is_low` adds a query of low rank."""
        hidden, heads, rotary_dim, low = self.hidden_size, self.num_heads, 16, 96
        return LatentAttention(
            norm=self.norm(60),
            query=self.linear(61, heads * (plain_dim + rotary_dim), low if is_low else hidden),
            latent=self.linear(63, rank + rotary_dim, hidden),
            latent_norm=self.norm(65, rank),
            key_up=self.linear(66, heads * rank, plain_dim),
            value_up=self.linear(68, heads * value_dim, rank),
            output=self.linear(70, hidden, heads * value_dim),
            num_heads=heads,
            plain_dim=plain_dim,
            value_dim=value_dim,
            rope=replace(make_rope(rotary_dim, 10_000.0), amplitude=1.2),
            scale=(plain_dim + rotary_dim) ** -0.5,
            query_down=self.linear(72, low, hidden) if is_low else None,
            query_norm=self.norm(74, low) if is_low else None,
        )

    def mlp(self, *, inner: int = 160, is_gelu: bool = False) -> GatedMlp:
        """Return a gated MLP block; with `is_gelu` its result has a norm too."""
        return GatedMlp(
            norm=self.norm(20),
            gate=self.linear(21, inner, self.hidden_size, bias=is_gelu),
            up=self.linear(23, inner, self.hidden_size),
            down=self.linear(25, self.hidden_size, inner),
            activation="gelu_tanh" if is_gelu else "silu",
            output_norm=self.norm(27) if is_gelu else None,
        )

    def squared_mlp(self, *, inner: int = 160) -> GatedMlp:
        """Return an MLP without a gate."""
        return GatedMlp(
            norm=self.norm(20),
            gate=None,
            up=self.linear(23, inner, self.hidden_size),
            down=self.linear(25, self.hidden_size, inner),
            activation="relu_squared",
        )

    def experts(self, kind: str, *, inner: int = 96, num_experts: int = 8) -> Experts:
        """Return a mixture of experts as a family has it; together they use all optional parts."""
        hidden, latent = self.hidden_size, 32 if kind == "nemotron" else self.hidden_size
        is_gated = kind != "nemotron"
        experts = tuple(
            Expert(
                self.linear(100 + 10 * number, inner, latent) if is_gated else None,
                self.linear(102 + 10 * number, inner, latent),
                self.linear(104 + 10 * number, latent, inner),
            )
            for number in range(num_experts)
        )
        block = Experts(self.norm(50), self._router(kind, num_experts), experts)
        if kind == "qwen":
            gate = replace(self, type_name="F32").linear(53, 1, hidden)
            shared = replace(self.mlp(), norm=block.norm)
            return replace(block, shared=shared, shared_gate=gate)
        if kind == "deepseek":
            return replace(block, shared=self.mlp())
        if kind == "nemotron":
            return replace(
                block,
                activation="relu_squared",
                shared=replace(self.squared_mlp(), norm=block.norm),
                reduce=self.linear(55, latent, hidden),
                expand=self.linear(57, hidden, latent),
            )
        return replace(
            block,
            activation="gelu_tanh",
            shared=self.mlp(is_gelu=True),
            sum_norm=self.norm(58),
            output_norm=self.norm(59),
        )

    def _router(self, kind: str, num_experts: int) -> Router:
        wide = replace(self, type_name="F32").linear(51, num_experts, self.hidden_size)
        scales = np.exp(random(61, num_experts) / 4).astype(np.float32)
        if kind == "qwen":
            return Router(wide, num_chosen=3)
        if kind == "gemma":
            return Router(wide, num_chosen=2, scales=scales, norm=self.norm(60))
        return Router(
            wide,
            num_chosen=3,
            scoring="sigmoid",
            is_renormalised=kind == "nemotron",
            scales=np.full(num_experts, 2.5, dtype=np.float32),
            choice_bias=random(62, num_experts) / np.float32(4),
            num_groups=4 if kind == "deepseek" else 1,
            num_chosen_groups=2 if kind == "deepseek" else 1,
        )


def one_span(num_rows: int, first_position: int = 0) -> Rows:
    """Return rows of one sequence."""
    return Rows(np.zeros(num_rows, dtype=np.int64), (Span(0, num_rows, first_position),))


def kv_layer(ops: Ops, block: Mixer) -> KVLayer:
    """Return the empty state of an attention block."""
    state = ops.make_state(block)
    assert has_positions(state)
    return state


def filled_cache(
    ops: Ops, layers: Sequence[Layer], seed: int, num_held: int, capacity: int
) -> list[KVLayer]:
    """Return one sequence's cache that holds some random rows, and has room for more."""
    block = layers[0].attention
    cache = [kv_layer(ops, layer.attention) for layer in layers]
    for layer in cache:
        layer.reserve(capacity)
    if num_held:
        rows = random(seed, num_held, len(block.norm.weight))
        ops.run_layers(rows, layers, [cache], one_span(num_held))
    return cache


def attend_in_cuts(
    ops: Ops, block: Mixer, x: FloatArray, cuts: Sequence[int], beside: FloatArray | None = None
) -> FloatArray:
    """Run the rows of one sequence through attention in spans of the given sizes."""
    layer = kv_layer(ops, block)
    layer.reserve(len(x))
    parts, start = [], 0
    for size in cuts:
        own = slice(start, start + size)
        extra = None if beside is None else beside[own]
        parts.append(ops.mix(x[own], block, [layer], one_span(size, start), extra))
        start += size
    return np.concatenate(parts)


def random_cuts(rng: np.random.Generator, total: int) -> list[int]:
    """Cut `total` rows into spans of random sizes, small and large."""
    cuts = []
    while total:
        size = min(total, int(rng.choice([1, 2, 3, 5, 16, 17, 40, 100])))
        cuts.append(size)
        total -= size
    return cuts
