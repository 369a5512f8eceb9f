"""The hidden states of a pass, by row, as heads read them."""

from typing import NamedTuple

from headlong.ops.op_set import Array


class HiddenRows(NamedTuple):
    """Hidden states of the rows of one pass."""

    raw: Array
    """(N, H) after the last layer, before the final norm."""
    normed: Array
    """(N, H) after the final norm: what the LM head reads."""
    taps: Array | None
    """(N, T * H) inputs of the tapped layers side by side, None when none were asked for."""

    def rows(self, first: int, stop: int) -> "HiddenRows":
        """Return rows `first` up to, not including, `stop`."""
        taps = None if self.taps is None else self.taps[first:stop]
        return HiddenRows(self.raw[first:stop], self.normed[first:stop], taps)

    @property
    def nothing(self) -> Array:
        """(N, 0) the features of a drafter that reads tokens only."""
        return self.raw[:, :0]
