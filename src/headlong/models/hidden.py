"""What a backbone pass leaves behind for each row: the features that heads read."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from headlong.arrays import FloatArray, IntArray

_Array = TypeVar("_Array", FloatArray, IntArray)


class HiddenRows(NamedTuple):
    """Hidden states of the rows of one pass."""

    raw: FloatArray
    """(N, H) after the last layer, before the final norm."""
    normed: FloatArray
    """(N, H) after the final norm: what the LM head reads."""
    taps: FloatArray | None
    """(N, T * H) inputs of the tapped layers side by side, None when none were asked for."""

    def rows(self, first: int, stop: int) -> "HiddenRows":
        """Return rows `first` up to, not including, `stop`."""
        taps = None if self.taps is None else self.taps[first:stop]
        return HiddenRows(self.raw[first:stop], self.normed[first:stop], taps)

    @property
    def nothing(self) -> FloatArray:
        """(N, 0) what somebody reads who reads nothing of the rows."""
        return self.raw[:, :0]


def join_rows(parts: Sequence[_Array]) -> _Array:
    """Put the rows of several passes or sequences under one another."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
