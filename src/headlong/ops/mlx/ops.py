"""The MLX backend: the op set on lazy arrays, bfloat16 on Apple's GPUs, float32 on a CPU.

Blocks only say what is to be computed. A round is computed when its picks are read back, so all
layers of a pass are one evaluation, and so are all steps of a draft (`ops/mlx/draft.py`).
Rows do not depend on each other (exactness, design note 0001): matrices take rows as measured
(`ops/mlx/weights.py`), attention has shapes of a row's own (`ops/mlx/attention.py`), and all other
maths works number by number or along a row.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from headlong.arrays import FloatArray, IntArray
from headlong.ops.backends import register_backend
from headlong.ops.block_by_block import BlockByBlock
from headlong.ops.blocks import (
    Attending,
    Attention,
    Channel,
    Experts,
    LatentAttention,
    Layer,
    Linear,
    Mamba2,
    Mixer,
    Norm,
    PerLayerInput,
    SharedAttention,
)
from headlong.ops.draft_blocks import DraftBlocks
from headlong.ops.host_ops import HostOps
from headlong.ops.layer_state import LayerState
from headlong.ops.mlx.attention import attend
from headlong.ops.mlx.draft import DraftNumbers, begin_draft, noise_multiples
from headlong.ops.mlx.experts import experts_result, mlp_result, per_layer_result
from headlong.ops.mlx.graphs import PassGraphs
from headlong.ops.mlx.host import MlxHost, enter, finish, is_on_metal, read, start
from headlong.ops.mlx.latent import latent_result
from headlong.ops.mlx.maths import gate_by_sigmoid, rms_norm, rotate, silu
from headlong.ops.mlx.recurrent import delta_net_result, make_stepped_state, mamba_result
from headlong.ops.mlx.state import MlxKVLayer, PassPlan
from headlong.ops.mlx.weights import (
    MlxMatrix,
    join,
    kernel_problems,
    make_matrix,
    matrix_bytes,
    matrix_format,
    stack,
)
from headlong.ops.op_set import BegunDraft, DraftRow, Rows
from headlong.weights.tensors import StoredTensor

_MANY_ROWS = 32
"""Rows of a pass that is a prompt's: nothing may be read back of it, so it starts at once."""


class MlxOps(BlockByBlock):
    """The op set in MLX."""

    name = "mlx"
    host: HostOps = MlxHost()

    def __init__(self) -> None:
        enter()
        is_metal = is_on_metal()
        wired = mx.device_info().get("max_recommended_working_set_size") if is_metal else None
        if wired is not None:  # weights stay where the GPU reads them, whatever else wants memory
            mx.set_wired_limit(wired)
        self.dtype = mx.bfloat16 if is_metal else mx.float32
        self._made: WeakKeyDictionary[object, dict[str, Any]] = WeakKeyDictionary()
        """What was made of a spec: its vectors, or its matrices joined."""
        self.plan: PassPlan | None = None
        """Of the newest pass."""
        self.graphs = PassGraphs(self, is_on=is_metal)  # on a CPU, a C++ compiler is called
        place = "Apple's GPU, bf16" if is_metal else "the CPU, f32"
        self.note = (
            f"MLX {mx.__version__} on {place}; recurrent layers take rows one by one, and drafts "
            "of heads with several layers are read before they are verified"
        )

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> MlxMatrix:
        """Pack a stored tensor in affine groups if it is quantised; else keep it as floats."""
        enter()
        made = make_matrix(tensor, quant, self.dtype)
        for what, problem in kernel_problems.items():
            lost = f"; no kernel of ours for {what}: {problem}"
            self.note += lost if lost not in self.note else ""
        return made

    def matrix_bytes(self, tensor: StoredTensor, quant: str | None = None) -> int:
        """Return the bytes of a tensor once it is packed, or kept as floats."""
        return matrix_bytes(tensor, quant, self.dtype)

    def matrix_format(self, tensor: StoredTensor, quant: str | None = None) -> str:
        """Return the name of the format a tensor is packed in."""
        return matrix_format(tensor, quant, self.dtype)

    def finish_loading(self) -> None:
        """Give back what only loading needed."""
        mx.clear_cache()

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return an empty state; recurrent ones are in float32."""
        enter()
        if isinstance(mixer, Attending):
            return MlxKVLayer(mixer.num_kv_heads, mixer.head_dim, mixer.value_dim, self.dtype)
        if isinstance(mixer, LatentAttention):
            return MlxKVLayer(1, mixer.rank + mixer.rotary_dim, mixer.rank, self.dtype)
        return make_stepped_state(mixer)

    def join(self, parts: Sequence[Any], axis: int = 0) -> Any:
        """Put arrays one after the other along an axis; numbers of the host come to the device."""
        enter()
        arrays = [mx.array(part).astype(self.dtype) for part in parts]
        return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis)

    def stack(self, parts: Sequence[Any]) -> Any:
        """Put arrays of one shape beside each other along a new first axis."""
        return mx.stack(list(parts))

    def rows(self, x: Any, indices: Sequence[int]) -> Any:
        """Return the rows at these indices."""
        return x[mx.array(list(indices), dtype=mx.int32)]

    def to_host(self, x: Any) -> FloatArray:
        """Return an array's numbers as float32 in numpy; what they take is computed now."""
        enter()
        return read(x)[0]

    def embed(self, table: MlxMatrix, token_ids: IntArray | Any, scale: float = 1.0) -> Any:
        """Look up embedding rows: (N,) → (N, H)."""
        enter()
        found = table.rows(mx.array(token_ids)).astype(self.dtype)
        return found if scale == 1.0 else found * scale

    def norm(self, x: Any, norm: Norm) -> Any:
        """Scale to unit root mean square, times the learned weight: (N, …, H)."""
        return rms_norm(x, self.vector(norm, "weight"), norm.eps)

    def project(self, x: Any, linear: Linear) -> Any:
        """Apply a projection to every row."""
        y = linear.weight.times(x)
        return y if linear.bias is None else (y + self.vector(linear, "bias")).astype(x.dtype)

    def mix(
        self,
        x: Any,
        block: Mixer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: Any = None,
    ) -> Any:
        """Run one mixer: norm, projections, states, add."""
        if isinstance(block, Attending):
            return self._attention(x, block, states, self.plan_of(rows), beside)
        if isinstance(block, LatentAttention):
            return x + latent_result(self, x, block, states, self.plan_of(rows))
        if isinstance(block, Mamba2):
            return x + mamba_result(self, x, block, states, rows)
        return x + delta_net_result(self, x, block, states, rows)

    def transform(self, x: Any, block: Channel, beside: Any = None) -> Any:
        """Run one channel part."""
        if isinstance(block, PerLayerInput):
            assert beside is not None
            return x + per_layer_result(self, x, block, beside)
        if isinstance(block, Experts):
            return x + experts_result(self, x, block)
        return x + mlp_result(self, x, block)

    def run_layers(
        self,
        x: Any,
        layers: Sequence[Layer],
        states: Sequence[Sequence[LayerState | None]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[Any, Any]:
        """Run the layers; a pass of many rows begins at once, before the next one is planned.

        The next one reads a longer context. MLX keeps the memory of all that was as long as this
        one's, wired on a Mac, until it is told not to.
        """
        if len(x) <= _MANY_ROWS:
            return self.graphs.run(x, layers, states, rows, tap_layers)
        x, taps = super().run_layers(x, layers, states, rows, tap_layers)
        start(x)
        mx.clear_cache()
        return x, taps

    def run_last(
        self,
        x: Any,
        layer: Layer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: Any = None,
    ) -> Any:
        """Run a head's layer and have it computed while the host plans the next round."""
        last = super().run_last(x, layer, states, rows, beside)
        start(last)
        return last

    def residual_silu(self, x: Any, linear: Linear) -> Any:
        """x + silu(linear(x))."""
        return x + silu(self.project(x, linear))

    def begin_draft(self, blocks: DraftBlocks, rows: Sequence[DraftRow]) -> list[BegunDraft]:
        """Begin every row's draft, and have all of them computed while the pass is planned."""
        drafts = begin_draft(self, blocks, rows)
        start(*drafts)
        return drafts

    def place_drafts(self, token_ids: IntArray, drafts: Sequence[tuple[int, Any]]) -> Any:
        """Return the token ids of a pass, in which drafts stand from these rows on."""
        placed = mx.array(token_ids.astype(np.int32))
        for first, drafted in drafts:
            placed[first : first + len(drafted)] = drafted
        return placed

    def collect(self, drafts: Sequence[BegunDraft]) -> list[tuple[list[int], list[float]]]:
        """Return tokens and probabilities of drafts that a pass has verified."""
        return [(np.array(one.token_ids).tolist(), np.array(one.probs).tolist()) for one in drafts]

    def project_fused(self, x: Any, spec: object, *linears: Linear) -> list[Any]:
        """Apply a block's projections of the same input, in one product where they are alike."""
        made = self._made.setdefault(spec, {})
        if "joined" not in made:
            is_alike = len({linear.weight.kind for linear in linears}) == 1
            made["joined"] = join([one.weight for one in linears]) if is_alike else None
        if made["joined"] is None:
            return [self.project(x, linear) for linear in linears]
        sizes = [linear.weight.num_outputs for linear in linears]
        parts = mx.split(made["joined"].times(x), np.cumsum(sizes)[:-1].tolist(), axis=-1)
        return [
            part if one.bias is None else (part + self.vector(one, "bias")).astype(x.dtype)
            for part, one in zip(parts, linears, strict=True)
        ]

    def stacks(self, block: Experts) -> dict[str, MlxMatrix]:
        """Return each projection of all experts as one stack of matrices."""
        made = self._made.setdefault(block, {})
        if not made:
            for name in ("up", "gate", "down"):
                linears = [getattr(expert, name) for expert in block.experts]
                if linears[0] is not None:
                    made[name] = stack([linear.weight for linear in linears])
        return made

    def vector(self, spec: Any, name: str) -> Any:
        """Return a field of a spec, numbers on the host, as an array; it is made once."""
        made = self._made.setdefault(spec, {})
        if name not in made:
            made[name] = mx.array(np.asarray(getattr(spec, name), dtype=np.float32))
            finish(made[name])  # it may be used by other threads
        return made[name]

    def draft_numbers(self, blocks: DraftBlocks, size: int) -> DraftNumbers:
        """Return what the columns of a head's logits stand for; it is made once."""
        made = self._made.setdefault(blocks, {})
        if "numbers" not in made:
            ids = np.arange(size) if blocks.vocabulary is None else blocks.vocabulary
            made["numbers"] = DraftNumbers(mx.array(ids.astype(np.int32)), noise_multiples(ids))
            finish(made["numbers"])
        found: DraftNumbers = made["numbers"]
        return found

    def values_of(self, linear: Linear) -> Any:
        """Return a projection's matrix as floats; it is made once."""
        made = self._made.setdefault(linear, {})
        if "values" not in made:
            made["values"] = linear.weight.values().astype(self.dtype)
            finish(made["values"])
        return made["values"]

    def plan_of(self, rows: Rows) -> PassPlan:
        """Return what the layers of this pass share about its rows."""
        if self.plan is None or self.plan.rows is not rows:
            self.plan = PassPlan(rows)
        return self.plan

    def _attention(
        self,
        x: Any,
        block: Attending,
        states: Sequence[LayerState | None],
        plan: PassPlan,
        beside: Any,
    ) -> Any:
        """Norm, q/k/v, rotary, cache write, attend, project, add."""
        normed = self.norm(x, block.norm)
        gate = None
        if isinstance(block, SharedAttention):
            angles = plan.angles(block.rope, block.ahead)
            query = self._heads(self.project(normed, block.query), block.query_norm, block, angles)
        else:
            x = normed if block.adds_to_normed else x
            if block.beside_norm is not None:
                normed = mx.concatenate([self.norm(beside, block.beside_norm), normed], -1)
            query, gate = self._write(normed, block, states, plan)
        sinks = self._sinks(block)
        attended = attend(query, states, plan, block, sinks)
        if gate is not None:
            attended = gate_by_sigmoid(attended, gate)
        result = self.project(attended.astype(x.dtype), block.output)
        norm = block.output_norm
        return x + (result if norm is None else self.norm(result, norm))

    def _write(
        self, normed: Any, block: Attention, states: Sequence[LayerState | None], plan: PassPlan
    ) -> tuple[Any, Any]:
        """Project, write keys and values of all rows to their caches; return queries and gates."""
        gates = () if block.gate is None else (block.gate,)
        linears = (block.query, block.key, block.value, *gates)
        query, key, value, *gate = self.project_fused(normed, block, *linears)
        angles = plan.angles(block.rope)
        key = self._heads(key, block.key_norm, block, angles)
        value = value.reshape(len(normed), -1, block.value_dim)
        if block.value_norm is not None:
            value = self.norm(value, block.value_norm)
        for span, layer in zip(plan.rows.spans, states, strict=True):
            assert isinstance(layer, MlxKVLayer)
            own = slice(span.first_row, span.first_row + span.num_rows)
            layer.write(span.first_position, key[own], value[own])
        return self._heads(query, block.query_norm, block, angles), gate[0] if gate else None

    def _heads(
        self, projected: Any, norm: Norm | None, block: Attending, angles: tuple[Any, Any]
    ) -> Any:
        """Cut into heads, each with its own norm where the model has one, and turn them."""
        heads = projected.reshape(len(projected), -1, block.head_dim)
        return rotate(heads if norm is None else self.norm(heads, norm), *angles)

    def _sinks(self, block: Attending) -> Any:
        if block.sinks is None:
            return None
        return self.vector(block, "sinks").reshape(block.num_kv_heads, -1, 1)


@register_backend("mlx")
def make_ops(threads: int | None = None) -> MlxOps:
    """Return the MLX backend; threads are MLX's own business."""
    return MlxOps()
