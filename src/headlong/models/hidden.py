"""What a backbone pass leaves behind for each row: the features that heads read."""

from dataclasses import dataclass

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
