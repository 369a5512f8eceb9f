"""A model put together without its weights: what fits here also runs.

In:  a backend. Out: what stands in for it while a model or a head is built and checked.
"""

from dataclasses import replace

import numpy as np

from headlong.ops.blocks import Mixer
from headlong.ops.layer_state import LayerState
from headlong.ops.op_set import Ops
from headlong.weights.tensors import StoredTensor


class WeighingOps:
    """Stands in for a backend while a model is put together: weighs matrices, packs none."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.name = ops.name
        self.num_bytes = 0

    def matrix(self, tensor: StoredTensor, quant: str | None = None) -> StoredTensor:
        """Count what the backend would take and hand the tensor on, as large but without numbers.

        Rows that were moved are a copy; kept for all layers, they would fill the memory.
        """
        self.num_bytes += self._ops.matrix_bytes(tensor, quant)
        return replace(tensor, data=np.broadcast_to(np.uint8(0), tensor.data.shape))

    def make_state(self, mixer: Mixer) -> LayerState:
        """Return the backend's own layer state, to be measured."""
        return self._ops.make_state(mixer)
