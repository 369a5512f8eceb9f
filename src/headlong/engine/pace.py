"""Pace: how long something takes, as measured lately."""

from dataclasses import dataclass

SMOOTHING = 0.3
"""Weight of the newest measurement of a pace."""


@dataclass(slots=True)
class Pace:
    """How long something takes, as a moving average; None before it was measured."""

    seconds: float | None = None

    def observe(self, seconds: float) -> None:
        """Learn from one more measurement."""
        if self.seconds is None:
            self.seconds = seconds
        # One stall counts as twice the usual at most.
        self.seconds += SMOOTHING * (min(seconds, 2 * self.seconds) - self.seconds)
