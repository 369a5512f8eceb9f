"""Build a model without packing its weights: check that it fits, and count its bytes.

In:  a backend. Out: a substitute for it while a model or a head is built.
"""

from dataclasses import replace

import numpy as np

from headlong.ops.blocks import Mixer
from headlong.ops.layer_state import LayerState
from headlong.ops.op_set import Ops
from headlong.weights.tensors import StoredTensor


class SizingOps:
    """A substitute for a backend: counts the bytes of matrices instead of packing them."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.name = ops.name
        self.num_bytes = 0

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> StoredTensor:
        """Count the bytes the backend would take; return a tensor of that shape without data.

        Reordered rows are a copy, and copies of all layers would fill the memory.
        """
        self.num_bytes += self._ops.matrix_bytes(tensor, quant)
        return replace(tensor, data=np.broadcast_to(np.uint8(0), tensor.data.shape))

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return the backend's own layer state, whose size is measured."""
        return self._ops.make_state(mixer)
