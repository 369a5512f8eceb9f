"""What a backbone pass leaves behind for each row: the features that heads read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headlong.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class HiddenRows:
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
    def num_bytes(self) -> int:
        """Bytes of the rows."""
        taps_bytes = 0 if self.taps is None else self.taps.nbytes
        return int(self.raw.nbytes + self.normed.nbytes + taps_bytes)


def join_rows(parts: Sequence[HiddenRows]) -> HiddenRows:
    """Put the rows of several sequences under one another."""
    if len(parts) == 1:
        return parts[0]
    taps = [part.taps for part in parts if part.taps is not None]
    return HiddenRows(
        np.concatenate([part.raw for part in parts]),
        np.concatenate([part.normed for part in parts]),
        np.concatenate(taps) if taps else None,
    )
