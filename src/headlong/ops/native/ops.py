"""The native CPU backend: the op set on compiled kernels (csrc/), one call per block or stack.

In:  the same specs and arrays as the numpy oracle gets.
Out: the same results within quantisation of activations to 8 bits per group of 32, many times
sooner. Batch-invariant bit for bit: rows, their order, chunking and threads never change a result.

Specs become kernel blocks at their first use (`ops/native/blocks.py`), so one `Ops` belongs
to one loaded model and the heads that come and go with it.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.errors import BackendError
from headlong.ops import _native
from headlong.ops.backends import register_backend
from headlong.ops.blocks import Channel, Layer, Linear, Mixer, Norm, PerLayerInput
from headlong.ops.draft_blocks import DraftBlocks
from headlong.ops.host_arrays import HostArrays
from headlong.ops.host_ops import HostOps
from headlong.ops.layer_state import LayerState
from headlong.ops.native.blocks import NativeBlocks
from headlong.ops.native.host import NativeHost, native_rule
from headlong.ops.native.weights import pack, packed_bytes, packed_format
from headlong.ops.op_set import DraftRow, Rows
from headlong.weights.tensors import StoredTensor

INSTRUCTION_SET_VARIABLE = "HEADLONG_ISA"
"""Forces one set of kernels: portable, avx2 or avx512."""

THREADS_VARIABLE = "HEADLONG_THREADS"

_MAX_DEFAULT_THREADS = 8
"""Reading memory is the limit long before this many cores are busy."""

_MANY_NUMBERS = 2**14
"""From so many on, a result comes out of recycled memory: fresh pages are dear."""


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
        self._blocks = NativeBlocks(self.engine)

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> _native.Matrix:
        """Pack a stored tensor, in the format nearest to its own or in `quant`."""
        return pack(self.engine, tensor, quant)

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of a tensor once packed."""
        return packed_bytes(tensor, quant)

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format `matrix` packs a tensor in."""
        return packed_format(tensor, quant)

    def finish_loading(self) -> None:
        """Put weights in huge pages that were short before, and spare memory back to the system."""
        self.engine.settle()

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return an empty state: keys and values are 16-bit integers with scales."""
        return self._blocks.make_state(mixer)

    def embed(self, table: _native.Matrix, token_ids: IntArray, scale: float = 1.0) -> FloatArray:
        """Look up embedding rows: (N,) → (N, H)."""
        rows: FloatArray = np.empty((len(token_ids), table.shape[1]), dtype=np.float32)
        self.engine.embed(table, token_ids, rows)
        return rows if scale == 1.0 else rows * np.float32(scale)

    def norm(self, x: FloatArray, norm: Norm) -> FloatArray:
        """Apply a norm to every row."""
        y = np.empty_like(x)
        self.engine.norm(x, self._blocks.norm(norm), y)
        return y

    def project(self, x: FloatArray, linear: Linear) -> FloatArray:
        """Apply a projection to every row."""
        y = self._rows(len(x), linear.weight.shape[0])
        self.engine.project(x, self._blocks.linear(linear), y)
        return y

    def mix(
        self,
        x: FloatArray,
        block: Mixer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Run one mixer: norm, projections, states, add."""
        y = np.array(x, dtype=np.float32, order="C")
        kernel_states: Any = [[state] for state in states]
        stack = self._blocks.mixer(block)
        self.engine.run(stack, y, rows.spans, kernel_states, (), None, beside)
        return y

    def transform(
        self, x: FloatArray, block: Channel, beside: FloatArray | None = None
    ) -> FloatArray:
        """Run one channel part."""
        y = np.array(x, dtype=np.float32, order="C")
        own = beside if isinstance(block, PerLayerInput) else None
        self.engine.run(self._blocks.channel(block), y, [(0, len(y), 0)], [[None]], (), None, own)
        return y

    def run_layers(
        self,
        x: FloatArray,
        layers: Sequence[Layer],
        states: Sequence[Sequence[LayerState | None]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[FloatArray, FloatArray | None]:
        """Run a stack of layers in one call, copying the inputs of tapped layers."""
        y = np.array(x, dtype=np.float32, order="C")
        taps: FloatArray | None = None
        if tap_layers:
            taps = np.empty((len(y), len(tap_layers) * y.shape[1]), dtype=np.float32)
        kernel_states: Any = states
        stack = self._blocks.stack(layers)
        self.engine.run(stack, y, rows.spans, kernel_states, tap_layers, taps, rows.beside)
        return y, taps

    def run_last(
        self,
        x: FloatArray,
        layer: Layer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: FloatArray | None = None,
    ) -> FloatArray:
        """Keys and values of all rows, everything else for the last row of every span only."""
        y: FloatArray = np.empty((len(rows.spans), x.shape[1]), dtype=np.float32)
        kernel_states: Any = [[state] for state in states]
        self.engine.run_last(self._blocks.layer(layer), x, rows.spans, kernel_states, beside, y)
        return y

    def residual_silu(self, x: FloatArray, linear: Linear) -> FloatArray:
        """x + silu(linear(x))."""
        y = np.empty_like(x)
        self.engine.residual_silu(x, self._blocks.linear(linear), y)
        return y

    def draft(
        self, blocks: DraftBlocks, rows: Sequence[DraftRow]
    ) -> list[tuple[list[int], list[float]]] | None:
        """Draft for all rows in one call, depth after depth."""
        head = self._blocks.draft_head(blocks)
        requests: Any = [
            (
                row.layer,
                row.first_position,
                row.num_tokens,
                row.extend,
                self._blocks.calibration(row.calibration),
                native_rule(row.rule),
                row.token_position,
            )
            for row in rows
        ]
        drafted = self.engine.draft(head, np.array([row.state for row in rows]), requests)
        if any(is_broken for _, _, is_broken in drafted):
            return None
        return [(token_ids, probs) for token_ids, probs, _ in drafted]

    def _rows(self, num_rows: int, num_columns: int) -> FloatArray:
        """Return room for rows; large ones out of memory that was used before."""
        if num_rows * num_columns < _MANY_NUMBERS:
            return np.empty((num_rows, num_columns), dtype=np.float32)
        return self.engine.make_rows(num_rows, num_columns)


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


@register_backend("native")
def make_ops(threads: int | None = None) -> NativeOps:
    """Return the native backend with so many threads, by default all cores it may use."""
    return NativeOps(threads)
