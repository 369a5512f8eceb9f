"""The bar `headlong bench` draws: answers done, the task that runs, time left.

In:  every run as it comes. Out: a moving bar on standard error, or a line now and then when that is
no terminal; nothing when quiet.
"""

import time
from typing import TYPE_CHECKING, Self

import rich.progress

from headlong.cli.live_bar import LiveBar
from headlong.cli.output import make_console

if TYPE_CHECKING:
    from headlong.bench.measure import Run

_LINE_EVERY_S = 15.0


class BenchBar(LiveBar):
    """Shows how far a measurement is; use it as a context manager."""

    def __init__(
        self,
        total: int,
        time_budget_s: float | None = None,
        *,
        noun: str = "answers",
        is_quiet: bool = False,
    ) -> None:
        console = make_console(stderr=True)
        console.quiet = is_quiet
        super().__init__(
            rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.fields[left]}"),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
        )
        self._noun = noun
        self._total, self._time_budget_s = total, time_budget_s
        self._num_done = 0
        self._began_s = self._last_line_s = time.monotonic()
        self._task = self._bar.add_task("warming up", total=total, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def advance(self, run: "Run") -> None:
        """Count one answer; say when there was none."""
        name = f"{run.question.prompt.name} on {run.side}"
        self.tick(run.question.prompt.task[:14], run.error and f"{name}: {run.error}")

    def tick(self, description: str, failure: str | None = None) -> None:
        """Count one thing that is done, or has failed."""
        self._num_done += 1
        if failure is not None:
            self._console.print(f"failed: {failure}", style="red", soft_wrap=True)
        left = f"{format_duration(self.time_left_s())} left"
        self._bar.update(self._task, advance=1, description=description, left=left)
        now_s = time.monotonic()
        if not self._console.is_terminal and now_s - self._last_line_s >= _LINE_EVERY_S:
            self._last_line_s = now_s
            self._console.print(f"{self._num_done} of {self._total} {self._noun}, {left}")

    def time_left_s(self) -> float:
        """Guess from the pace so far; a time budget ends it sooner."""
        passed_s = time.monotonic() - self._began_s
        left_s = passed_s / max(1, self._num_done) * (self._total - self._num_done)
        if self._time_budget_s is None:
            return left_s
        return max(0.0, min(left_s, self._time_budget_s - passed_s))


def format_duration(seconds: float) -> str:
    """Write a time for people: 0:42, 12:05, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
