"""Random weights and blocks in every stored type, for the tests of the native backend."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from headlong.arrays import FloatArray
from headlong.errors import BackendError
from headlong.models.rope import make_rope
from headlong.ops.layer_state import KVLayer, has_positions
from headlong.ops.native_ops import NativeOps
from headlong.ops.op_set import (
    Attention,
    GatedDeltaNet,
    GatedMlp,
    Layer,
    Linear,
    Norm,
    Ops,
    Rows,
    Span,
)
from headlong.weights.tensors import StoredTensor

INSTRUCTION_SETS = ("portable", "avx2", "avx512")
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
            output_norm=self.norm(13) if is_beside else None,
            window=window,
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


def one_span(num_rows: int, first_position: int = 0) -> Rows:
    """Return rows of one sequence."""
    return Rows(np.zeros(num_rows, dtype=np.int64), (Span(0, num_rows, first_position),))


def kv_layer(ops: Ops, block: Attention) -> KVLayer:
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
    ops: Ops, block: Attention, x: FloatArray, cuts: Sequence[int], beside: FloatArray | None = None
) -> FloatArray:
    """Run the rows of one sequence through attention in spans of the given sizes."""
    layer = kv_layer(ops, block)
    layer.reserve(len(x))
    parts, start = [], 0
    for size in cuts:
        own = slice(start, start + size)
        extra = None if beside is None else beside[own]
        parts.append(ops.attention(x[own], block, [layer], one_span(size, start), extra))
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
