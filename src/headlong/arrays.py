"""Names for the arrays that travel between packages, so that signatures say what they carry."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float32]
"""Activations, logits and unpacked weights."""

IntArray: TypeAlias = NDArray[np.int64]
"""Token ids and positions."""

ByteArray: TypeAlias = NDArray[np.uint8]
"""Weights as they lie in a file."""

BoolArray: TypeAlias = NDArray[np.bool_]
"""Yes or no per token or column."""
