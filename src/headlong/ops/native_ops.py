"""The native CPU backend: the op set on compiled kernels (csrc/), one call per block or stack.

In:  the same specs and arrays as the numpy oracle gets.
Out: the same results within quantisation of activations to 8 bits per group of 32, many times
sooner. Batch-invariant bit for bit: rows, their order, chunking and threads never change a result.

Specs are translated into kernel blocks at their first use and kept as long as the specs are, so one
`Ops` belongs to one loaded model and the heads that come and go with it.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.errors import BackendError
from headlong.ops import _native
from headlong.ops.backends import register_backend
from headlong.ops.calibration import EDGES, Calibration
from headlong.ops.host_arrays import HostArrays
from headlong.ops.host_ops import HostOps
from headlong.ops.layer_state import LayerState
from headlong.ops.native_host import NativeHost, native_rule
from headlong.ops.native_weights import pack, packed_bytes, packed_format
from headlong.ops.op_set import (
    Attention,
    DraftBlocks,
    DraftRow,
    Fusion,
    GatedDeltaNet,
    GatedMlp,
    Layer,
    Linear,
    Mixer,
    Norm,
    Rope,
    Rows,
)
from headlong.weights.tensors import StoredTensor

INSTRUCTION_SET_VARIABLE = "HEADLONG_ISA"
"""Forces one set of kernels: portable, avx2 or avx512."""

THREADS_VARIABLE = "HEADLONG_THREADS"

_MAX_DEFAULT_THREADS = 8
"""Reading memory is the limit long before this many cores are busy."""

_MANY_NUMBERS = 2**14
"""From so many on, a result comes out of recycled memory: fresh pages are dear."""

_T = TypeVar("_T")


class NativeOps(HostArrays):
    """The op set on compiled kernels."""

    name = "native"
    host: HostOps = NativeHost()

    def __init__(self, threads: int | None = None, instruction_set: str | None = None) -> None:
        wanted = instruction_set or os.environ.get(INSTRUCTION_SET_VARIABLE) or "auto"
        try:
            self.engine = _native.Engine(wanted, threads or _default_threads())
        except ValueError as error:
            raise BackendError(
                f"The native backend cannot start: {error}.",
                f"Set {INSTRUCTION_SET_VARIABLE} to auto, avx512, avx2 or portable, and threads "
                "to a number from 1 to 256.",
            ) from error
        self.note = f"{self.engine.instruction_set}, {self.engine.num_threads} threads"
        # By id, since specs hold arrays and cannot be hashed; an entry goes when its spec does.
        self._translated: dict[int, tuple[object, Any]] = {}

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> _native.Matrix:
        """Pack a stored tensor, in the format nearest to its own or in `quant`."""
        return pack(self.engine, tensor, quant)

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of a tensor once packed."""
        return packed_bytes(tensor, quant)

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format `matrix` packs a tensor in."""
        return packed_format(tensor, quant)

    def settle(self) -> None:
        """Put weights in huge pages that were short before, and spare memory back to the system."""
        self.engine.settle()

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return an empty state: keys and values are 16-bit integers with scales."""
        if isinstance(mixer, Attention):
            return self.engine.make_kv_layer(mixer.num_kv_heads, mixer.head_dim)
        return self.engine.make_delta_state(_sizes(mixer), len(mixer.convolution))

    def embed(self, table: _native.Matrix, token_ids: IntArray, scale: float = 1.0) -> FloatArray:
        """Look up embedding rows: (N,) → (N, H)."""
        rows: FloatArray = np.empty((len(token_ids), table.shape[1]), dtype=np.float32)
        self.engine.embed(table, token_ids, rows)
        return rows if scale == 1.0 else rows * np.float32(scale)

    def norm(self, x: FloatArray, norm: Norm) -> FloatArray:
        """Apply a norm to every row."""
        y = np.empty_like(x)
        self.engine.norm(x, self._norm(norm), y)
        return y

    def project(self, x: FloatArray, linear: Linear) -> FloatArray:
        """Apply a projection to every row."""
        y = self._rows(len(x), linear.weight.shape[0])
        self.engine.project(x, self._linear(linear), y)
        return y

    def attention(
        self,
        x: FloatArray,
        block: Attention,
        states: Sequence[LayerState],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Norm, q/k/v, rotary, cache write, attend, project, add."""
        return self._mix(x, block, states, rows, beside)

    def gated_delta_net(
        self, x: FloatArray, block: GatedDeltaNet, states: Sequence[LayerState], rows: Rows
    ) -> FloatArray:
        """Norm, projections, convolution, delta rule, gated norm, project, add."""
        return self._mix(x, block, states, rows)

    def gated_mlp(self, x: FloatArray, block: GatedMlp) -> FloatArray:
        """Norm, gate and up, activation, down, add."""
        stack = self._translate(block, lambda: _native.Stack([(None, self._mlp(block))]))
        y = np.array(x, dtype=np.float32, order="C")
        self.engine.run(stack, y, [(0, len(y), 0)], [[None]], (), None, None)
        return y

    def run_layers(
        self,
        x: FloatArray,
        layers: Sequence[Layer],
        states: Sequence[Sequence[LayerState]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[FloatArray, FloatArray | None]:
        """Run a stack of layers in one call, copying the inputs of tapped layers."""
        stack = self._translate(layers, lambda: self._stack(layers))
        y = np.array(x, dtype=np.float32, order="C")
        taps: FloatArray | None = None
        if tap_layers:
            taps = np.empty((len(y), len(tap_layers) * y.shape[1]), dtype=np.float32)
        kernel_states: Any = states
        self.engine.run(stack, y, rows.spans, kernel_states, tap_layers, taps, None)
        return y, taps

    def run_last(
        self,
        x: FloatArray,
        layer: Layer,
        states: Sequence[LayerState],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Keys and values of all rows, everything else for the last row of every span only."""
        stack = self._translate(layer, lambda: self._stack([layer]))
        y: FloatArray = np.empty((len(rows.spans), x.shape[1]), dtype=np.float32)
        kernel_states: Any = [[state] for state in states]
        self.engine.run_last(stack, x, rows.spans, kernel_states, beside, y)
        return y

    def residual_silu(self, x: FloatArray, linear: Linear) -> FloatArray:
        """x + silu(linear(x))."""
        y = np.empty_like(x)
        self.engine.residual_silu(x, self._linear(linear), y)
        return y

    def draft(
        self, blocks: DraftBlocks, rows: Sequence[DraftRow]
    ) -> list[tuple[list[int], list[float]]] | None:
        """Draft for all rows in one call, depth after depth."""
        head = self._translate(blocks, lambda: self._draft_head(blocks))
        requests: Any = [
            (
                row.layer,
                row.first_position,
                row.num_tokens,
                row.extend,
                self._calibration(row.calibration),
                native_rule(row.rule),
                row.token_position,
            )
            for row in rows
        ]
        drafted = self.engine.draft(head, np.array([row.state for row in rows]), requests)
        if any(is_broken for _, _, is_broken in drafted):
            return None
        return [(token_ids, probs) for token_ids, probs, _ in drafted]

    def _mix(
        self,
        x: FloatArray,
        block: Mixer,
        states: Sequence[LayerState],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        stack = self._translate(block, lambda: _native.Stack([(self._mixer(block), None)]))
        y = np.array(x, dtype=np.float32, order="C")
        kernel_states: Any = [[state] for state in states]
        self.engine.run(stack, y, rows.spans, kernel_states, (), None, beside)
        return y

    def _rows(self, num_rows: int, num_columns: int) -> FloatArray:
        """Return room for rows; large ones out of memory that was used before."""
        if num_rows * num_columns < _MANY_NUMBERS:
            return np.empty((num_rows, num_columns), dtype=np.float32)
        return self.engine.make_rows(num_rows, num_columns)

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

    def _norm(self, norm: Norm) -> _native.Norm:
        return self._translate(norm, lambda: _native.Norm(_vector(norm.weight), norm.eps))

    def _optional_norm(self, norm: Norm | None) -> _native.Norm | None:
        return None if norm is None else self._norm(norm)

    def _linear(self, linear: Linear) -> _native.Linear:
        bias = None if linear.bias is None else _vector(linear.bias)
        return self._translate(linear, lambda: _native.Linear(linear.weight, bias))

    def _calibration(self, calibration: Calibration | None) -> _native.Calibration | None:
        if calibration is None:
            return None
        return self._translate(calibration, lambda: _native.Calibration(EDGES, calibration.chances))

    def _rope(self, rope: Rope) -> _native.Rope:
        return self._translate(rope, lambda: _native.Rope(_vector(rope.frequencies)))

    def _mixer(self, spec: Mixer) -> _native.Mixer:
        return self._attention(spec) if isinstance(spec, Attention) else self._delta_net(spec)

    def _delta_net(self, spec: GatedDeltaNet) -> _native.GatedDeltaNet:
        vectors = [_vector(one) for one in (spec.convolution, spec.decay_rate, spec.decay_bias)]
        block = _native.GatedDeltaNet(self.engine, _sizes(spec), *vectors)
        block.norm, block.head_norm = self._norm(spec.norm), self._norm(spec.head_norm)
        block.mixed, block.gate = self._linear(spec.mixed), self._linear(spec.gate)
        block.update, block.decay = self._linear(spec.update), self._linear(spec.decay)
        block.output = self._linear(spec.output)
        block.settle()
        return block

    def _attention(self, spec: Attention) -> _native.Attention:
        block = _native.Attention()
        block.norm = self._norm(spec.norm)
        block.query, block.key = self._linear(spec.query), self._linear(spec.key)
        block.value, block.output = self._linear(spec.value), self._linear(spec.output)
        block.num_heads, block.num_kv_heads = spec.num_heads, spec.num_kv_heads
        block.head_dim, block.scale = spec.head_dim, spec.scale
        block.window = spec.window or 0
        block.rope = self._rope(spec.rope)
        block.query_norm = self._optional_norm(spec.query_norm)
        block.key_norm = self._optional_norm(spec.key_norm)
        block.beside_norm = self._optional_norm(spec.beside_norm)
        block.output_norm = self._optional_norm(spec.output_norm)
        block.gate = None if spec.gate is None else self._linear(spec.gate)
        return block

    def _mlp(self, spec: GatedMlp) -> _native.GatedMlp:
        block = _native.GatedMlp()
        block.norm = self._norm(spec.norm)
        block.gate, block.up = self._linear(spec.gate), self._linear(spec.up)
        block.down = self._linear(spec.down)
        block.is_gelu = spec.activation == "gelu_tanh"
        block.output_norm = self._optional_norm(spec.output_norm)
        return block

    def _draft_head(self, blocks: DraftBlocks) -> _native.DraftHead:
        fusion = blocks.fusion
        return _native.DraftHead(
            blocks.embedding,
            blocks.embedding_scale,
            self._attention(blocks.attention),
            self._mlp(blocks.mlp),
            None if fusion is None else self._fusion(fusion),
            self._norm(blocks.norm),
            self._linear(blocks.lm_head),
            blocks.carries_normed,
            blocks.vocabulary,
        )

    def _fusion(self, fusion: Fusion) -> _native.Fusion:
        return _native.Fusion(
            self._norm(fusion.embedding_norm),
            self._norm(fusion.state_norm),
            self._linear(fusion.fc),
            fusion.is_state_first,
        )

    def _stack(self, layers: Sequence[Layer]) -> _native.Stack:
        return _native.Stack(
            [(self._mixer(layer.mixer), self._mlp(layer.channel)) for layer in layers]
        )


def _sizes(spec: GatedDeltaNet) -> tuple[int, int, int, int]:
    return spec.num_key_heads, spec.num_value_heads, spec.key_dim, spec.value_dim


def _default_threads() -> int:
    named = os.environ.get(THREADS_VARIABLE)
    if named:
        if not (named.isascii() and named.isdigit() and int(named) > 0):
            raise BackendError(
                f"{THREADS_VARIABLE} is {named!r}.",
                "Set it to a number from 1 to 256, or leave it out to use all cores.",
            )
        return int(named)
    # Where it is known, the cores this process may use, not all that there are.
    has_affinity = hasattr(os, "sched_getaffinity")
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(num_cores, _MAX_DEFAULT_THREADS)


def _vector(values: FloatArray) -> FloatArray:
    return np.ascontiguousarray(values, dtype=np.float32)


@register_backend("native")
def make_ops(threads: int | None = None) -> NativeOps:
    """Return the native backend with so many threads, by default all cores it may use."""
    return NativeOps(threads)
