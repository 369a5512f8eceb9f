"""Whole layers as one call after the other, for backends without a call of their own for them."""

from collections.abc import Sequence

from headlong.ops.blocks import Layer
from headlong.ops.layer_state import LayerState
from headlong.ops.op_set import Array, Ops, Rows


class BlockByBlock:
    """The part of the op set that runs layers, made of the blocks."""

    def run_layers(
        self: Ops,
        x: Array,
        layers: Sequence[Layer],
        states: Sequence[Sequence[LayerState | None]],
        rows: Rows,
        tap_layers: tuple[int, ...] = (),
    ) -> tuple[Array, Array | None]:
        """Run the layers one block after the other."""
        tapped: dict[int, Array] = {}
        for index, layer in enumerate(layers):
            if index in tap_layers:
                tapped[index] = x
            own = [states_of_span[index] for states_of_span in states]
            x = run_layer(self, x, layer, own, rows)
        return x, self.join([tapped[i] for i in tap_layers], -1) if tap_layers else None

    def run_last(
        self: Ops,
        x: Array,
        layer: Layer,
        states: Sequence[LayerState | None],
        rows: Rows,
        beside: Array | None = None,
    ) -> Array:
        """Run the layer over all rows, and take the last of every span."""
        x = run_layer(self, x, layer, states, rows, beside)
        return self.rows(x, [span.first_row + span.num_rows - 1 for span in rows.spans])


def run_layer(
    ops: Ops,
    x: Array,
    layer: Layer,
    states: Sequence[LayerState | None],
    rows: Rows,
    beside: Array | None = None,
) -> Array:
    """Run the parts of one layer; `beside` is what its mixer reads as a second input."""
    if layer.mixer is not None:
        x = ops.mix(x, layer.mixer, states, rows, beside)
    if layer.channel is not None:
        x = ops.transform(x, layer.channel, rows.beside)
    if layer.second is not None:
        x = ops.transform(x, layer.second, rows.beside)
    return x if layer.scale == 1.0 else x * layer.scale
