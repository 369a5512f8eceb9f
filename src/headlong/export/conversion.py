"""Tensors in another type of float, and how many numbers that changes.

In:  tensors as they are stored. Out: the same in float32, float16 or bfloat16.
"""

import numpy as np

from headlong.errors import TensorError
from headlong.heads.head_weights import FloatType, store_array
from headlong.weights.tensors import StoredTensor


class Conversion:
    """Stores tensors in one type of float."""

    def __init__(self, float_type: FloatType) -> None:
        self.float_type = float_type
        self.num_values = 0
        self.num_changed = 0

    def apply(self, tensor: StoredTensor) -> StoredTensor:
        """Return the tensor in that type; refuse numbers it cannot hold."""
        values = tensor.to_float32()
        with np.errstate(over="ignore"):  # what overflows is refused below
            stored = store_array(tensor.name, values, self.float_type)
        back = stored.to_float32()
        if not np.isfinite(back).all():
            raise TensorError(
                f"Tensor {tensor.name} has numbers that {self.float_type} cannot hold.",
                "Export with --dtype float32.",
            )
        self.num_values += values.size
        self.num_changed += int(np.count_nonzero(back != values))
        return stored

    @property
    def share_changed(self) -> float:
        """Return which share of the numbers is not what it was."""
        return self.num_changed / max(self.num_values, 1)
