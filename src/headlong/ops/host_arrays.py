"""Array operations for backends whose arrays are numpy arrays.

In:  arrays of one backend. Out: arrays of the same, or their numbers in numpy.
"""

from collections.abc import Sequence

import numpy as np

from headlong.arrays import FloatArray


class HostArrays:
    """The part of the op set that joins and picks rows, on numpy arrays."""

    def join(self, parts: Sequence[FloatArray], axis: int = 0) -> FloatArray:
        """Put arrays one after the other along an axis; a single one is not copied."""
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)

    def stack(self, parts: Sequence[FloatArray]) -> FloatArray:
        """Put arrays of one shape beside each other along a new first axis."""
        return np.stack(parts)

    def rows(self, x: FloatArray, indices: Sequence[int]) -> FloatArray:
        """Return the rows at these indices."""
        return x[list(indices)]

    def to_host(self, x: FloatArray) -> FloatArray:
        """Return the array itself."""
        return x
