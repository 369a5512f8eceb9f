"""Progress reports of a pull, independent of how they are displayed.

In:  labels, byte counts and short notes from the sources.
Out: calls on a `Progress`; the command line draws a bar from them, Python callers get log lines.
Knows nothing of terminals.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

POLL_INTERVAL_S = 0.2
"""How often `watched` measures a growing download."""


class Progress(Protocol):
    """Receives the progress of a pull."""

    def begin(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        """Start counting from what is here to `total_bytes`; None when the total is unknown."""

    def update(self, done_bytes: int) -> None:
        """Say how many bytes are there by now, earlier pulls included."""

    def note(self, text: str) -> None:
        """Say one short sentence about what happens now."""


class LogProgress:
    """Tell the `headlong` logger what starts and what is noted; draw nothing."""

    _log = logging.getLogger("headlong")

    def begin(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        """Log that a transfer starts."""
        size = "size unknown" if total_bytes is None else f"{total_bytes:,} bytes"
        self._log.info("pulling %s (%s)", label, size)

    def update(self, done_bytes: int) -> None:
        """Stay silent: a log is no place for a moving bar."""

    def note(self, text: str) -> None:
        """Log the note."""
        self._log.info("%s", text)


@contextmanager
def watched(measure: Callable[[], int], progress: Progress) -> Iterator[None]:
    """Report `measure()` to `progress` several times a second until the block ends.

    Neither pip nor the hub client reports its byte count in a way that all their versions share.
    The size of what they have written is the same number and always true.
    """
    finished = threading.Event()

    def report() -> None:
        while not finished.wait(POLL_INTERVAL_S):
            progress.update(measure())

    reporter = threading.Thread(target=report, name="headlong-pull-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        finished.set()
        reporter.join()
