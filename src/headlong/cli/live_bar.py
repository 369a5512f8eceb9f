"""What all bars of the command line have in common: a console, and an end whatever happens.

In:  the columns of a bar. Out: a context manager around rich's own; it is gone when the block ends.
"""

from types import TracebackType
from typing import Self

import rich.progress


class LiveBar:
    """Owns a bar; use it as a context manager."""

    def __init__(self, bar: rich.progress.Progress) -> None:
        self._bar = bar
        self._console = bar.console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()
