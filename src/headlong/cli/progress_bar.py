"""The bar a pull draws: bytes, speed and time left.

In:  the calls of `weights.progress.Progress`.
Out: a moving bar on standard error, or plain lines when that is no terminal.
Knows nothing of where the bytes come from.
"""

import rich.progress

from headlong.cli.live_bar import LiveBar
from headlong.cli.output import format_bytes, make_console


class ProgressBar(LiveBar):
    """A `Progress` for the command line; use it as a context manager."""

    def __init__(self) -> None:
        super().__init__(
            rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(),
                rich.progress.DownloadColumn(),
                rich.progress.TransferSpeedColumn(),
                rich.progress.TimeRemainingColumn(),
                console=make_console(stderr=True),
                # Bars that have ended would push the answer off the screen.
                transient=True,
            )
        )
        self._task: rich.progress.TaskID | None = None

    def begin(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        """Draw a bar, or say in one line what starts."""
        if not self._console.is_terminal:
            size = "" if total_bytes is None else f" ({format_bytes(total_bytes)})"
            self._console.print(f"pulling {label}{size}", soft_wrap=True)
            return
        # The bar only appears now: a model that is already here draws nothing.
        self._bar.start()
        self._task = self._bar.add_task(label, total=total_bytes, completed=done_bytes)

    def update(self, done_bytes: int) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.update(self._task, completed=done_bytes)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, style="dim", soft_wrap=True)
