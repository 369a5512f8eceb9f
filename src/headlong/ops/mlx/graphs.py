"""Passes of rounds as compiled graphs: one for each shape, run without Python between layers.

In:  rows, layers, and the caches of their sequences. Out: what the layers make of the rows.
A shape is so many rows of each sequence, the stretches of the caches that they read, and the room
in these. Compiling one takes as long as planning several passes, so only what comes back is
compiled. A graph fuses small steps, and a device may round those otherwise: its first result is
compared with that of the blocks, bit for bit. Where they differ, no pass is compiled any more.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx
import numpy as np

from headlong.ops.block_by_block import BlockByBlock
from headlong.ops.blocks import Layer, Rope
from headlong.ops.layer_state import LayerState
from headlong.ops.mlx.host import read
from headlong.ops.mlx.state import KeySpan, MlxKVLayer, PassPlan
from headlong.ops.op_set import Rows

if TYPE_CHECKING:
    from headlong.ops.mlx.ops import MlxOps

COMPILE_AFTER = 10
"""Passes of a shape before it is compiled, which takes about ten times what a graph then saves."""

MAX_GRAPHS = 64
"""Graphs that are kept; the one that was not used for longest goes first."""

_MOST_COUNTED = 4096
"""Shapes whose passes are counted."""

States: TypeAlias = Sequence[Sequence[LayerState | None]]
Graph: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Pass:
    """One call of the layers."""

    x: Any
    layers: Sequence[Layer]
    states: States
    rows: Rows
    tap_layers: tuple[int, ...]


class _TracedCache(MlxKVLayer):
    """A cache in a graph: where rows are written is a number that the graph is given."""

    __slots__ = ("_start",)

    def __init__(self, keys: Any, values: Any, start: Any) -> None:
        self.keys, self.values, self._start = keys, values, start

    def write(self, position: int, keys: Any, values: Any) -> None:
        """Store (n, G, D) keys and values where the graph is told."""
        self.keys = mx.slice_update(self.keys, keys.swapaxes(0, 1), self._start, axes=(1,))
        self.values = mx.slice_update(self.values, values.swapaxes(0, 1), self._start, axes=(1,))


class PassGraphs:
    """The compiled passes of one backend."""

    def __init__(self, ops: "MlxOps", is_on: bool) -> None:
        self._ops = ops
        self.is_on = is_on
        """Whether passes are compiled; never again once a graph could not be used."""
        self._graphs: OrderedDict[Any, Graph] = OrderedDict()
        self._passes: Counter[Any] = Counter()
        self._asked: dict[Layer, tuple[list[tuple[Rope, int]], list[int | None]]] = {}
        """What a model's layers ask of the plan of a pass; its first pass tells."""

    def __len__(self) -> int:
        return len(self._graphs)

    def run(
        self,
        x: Any,
        layers: Sequence[Layer],
        states: States,
        rows: Rows,
        tap_layers: tuple[int, ...],
    ) -> tuple[Any, Any]:
        """Run the layers of one pass: as a graph if its shape has one, else block by block."""
        one = _Pass(x, layers, states, rows, tap_layers)
        caches = _caches_of(states)
        if not self.is_on or caches is None:
            return self._run_blocks(one)
        if layers[0] not in self._asked:
            result = self._run_blocks(one)
            self._asked[layers[0]] = self._ops.plan_of(rows).asked
            return result
        shape = self._shape_of(one, caches)
        graph = self._graphs.get(shape)
        if graph is not None:
            self._graphs.move_to_end(shape)
            return _put_back(caches, graph(*self._inputs(one, caches)))
        self._passes[shape] += 1
        if self._passes[shape] < COMPILE_AFTER:
            if len(self._passes) > _MOST_COUNTED:
                self._passes.clear()
            return self._run_blocks(one)
        return self._compile(shape, one, caches)

    def _run_blocks(self, one: _Pass) -> tuple[Any, Any]:
        return BlockByBlock.run_layers(
            self._ops, one.x, one.layers, one.states, one.rows, one.tap_layers
        )

    def _shape_of(self, one: _Pass, caches: Sequence[Sequence[MlxKVLayer]]) -> Any:
        """Return all that a graph takes for granted."""
        plan = self._ops.plan_of(one.rows)
        _, windows = self._asked[one.layers[0]]
        return (
            one.layers[0],
            one.tap_layers,
            one.x.dtype,
            tuple(span.num_rows for span in one.rows.spans),
            tuple(cache.keys.shape[1] for own in caches for cache in own),
            tuple(s[:4] for window in windows for span in plan.stretches(window) for s in span),
        )

    def _inputs(self, one: _Pass, caches: Sequence[Sequence[MlxKVLayer]]) -> tuple[Any, ...]:
        """Return what differs from pass to pass, as arrays."""
        plan = self._ops.plan_of(one.rows)
        ropes, windows = self._asked[one.layers[0]]
        return (
            one.x,
            [] if one.rows.beside is None else [one.rows.beside],
            mx.array([[span.first_position] for span in one.rows.spans], dtype=mx.int32),
            [plan.angles(*rope) for rope in ropes],
            [s.mask for window in windows for span in plan.stretches(window) for s in span],
            [[(cache.keys, cache.values) for cache in own] for own in caches],
        )

    def _compile(
        self, shape: Any, one: _Pass, caches: Sequence[Sequence[MlxKVLayer]]
    ) -> tuple[Any, Any]:
        """Compile a pass, and keep the graph if it gives the bits that the blocks give."""
        graph: Graph = mx.compile(self._traced(one))
        try:
            x, taps, _ = graph(*self._inputs(one, caches))
            found = read(x, *taps)
            problem = "a graph gives other bits than its blocks"
        except (RuntimeError, ValueError) as error:  # refused: that costs speed only
            found, problem = [], str(error).strip().partition("\n")[0]
        result = self._run_blocks(one)
        expected = read(*(part for part in result if part is not None))
        pairs = zip(found, expected, strict=False)
        if found and all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
            self._graphs[shape] = graph
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
        else:
            self.is_on = False
            self._ops.note += f"; passes are not compiled: {problem}"
            self._graphs.clear()
        return result

    def _traced(self, one: _Pass) -> Graph:
        """Return a pass of this shape as a function of arrays alone.

        The function lives longer than the sequences of `one`, and must keep none of their caches.
        """
        ops, plan = self._ops, self._ops.plan_of(one.rows)
        layers, tap_layers = one.layers, one.tap_layers
        token_ids, spans = one.rows.token_ids, one.rows.spans
        ropes, windows = self._asked[layers[0]]
        bounds = [[[s[:4] for s in span] for span in plan.stretches(window)] for window in windows]
        places = [_places_of(states) for states in one.states]

        def run(x: Any, beside: Any, starts: Any, angles: Any, masks: Any, held: Any) -> Any:
            rows = Rows(token_ids, spans, beside[0] if beside else None)
            ordered = iter(masks)
            stretches = [
                [[KeySpan(*bound, next(ordered)) for bound in span] for span in by_span]
                for by_span in bounds
            ]
            ops.plan = PassPlan(
                rows,
                dict(zip(ropes, angles, strict=True)),
                dict(zip(windows, stretches, strict=True)),
            )
            caches = [
                [_TracedCache(keys, values, starts[number]) for keys, values in own]
                for number, own in enumerate(held)
            ]
            states = [
                [None if place is None else own[place] for place in span]
                for own, span in zip(caches, places, strict=True)
            ]
            x, taps = BlockByBlock.run_layers(ops, x, layers, states, rows, tap_layers)
            written = [[(cache.keys, cache.values) for cache in own] for own in caches]
            return x, [] if taps is None else [taps], written

        return run


def _put_back(caches: Sequence[Sequence[MlxKVLayer]], found: Any) -> tuple[Any, Any]:
    """Let the caches hold what a graph wrote; return rows and taps."""
    x, taps, written = found
    for own, arrays in zip(caches, written, strict=True):
        for cache, held in zip(own, arrays, strict=True):
            cache.keys, cache.values = held
    return x, taps[0] if taps else None


def _caches_of(states: States) -> list[list[MlxKVLayer]] | None:
    """Return the caches of every sequence, each once; None where a layer keeps something else."""
    found: list[list[MlxKVLayer]] = []
    for span in states:
        own = {id(state): state for state in span if state is not None}.values()
        caches = [state for state in own if isinstance(state, MlxKVLayer)]
        if len(caches) < len(own):
            return None
        found.append(caches)
    return found


def _places_of(states: Sequence[LayerState | None]) -> list[int | None]:
    """Return for every layer which of its sequence's caches it has."""
    places: dict[int, int] = {}
    return [
        None if state is None else places.setdefault(id(state), len(places)) for state in states
    ]
