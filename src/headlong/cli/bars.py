"""The bars of the command line: downloads, measurements, training.

In:  how far something is. Out: a moving bar on standard error, or a line now and then when that is
no terminal; nothing when quiet. A bar is gone when its block ends, whatever happens.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import rich.progress

from headlong.cli.output import format_bytes, make_console


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


class ProgressBar(LiveBar):
    """A `Progress` for the command line; use it as a context manager."""

    def __init__(self, doing: str = "pulling") -> None:
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
        self._doing = doing
        self._task: rich.progress.TaskID | None = None

    def begin(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        """Draw a bar, or say in one line what starts."""
        if not self._console.is_terminal:
            size = "" if total_bytes is None else f" ({format_bytes(total_bytes)})"
            self._console.print(f"{self._doing} {label}{size}", soft_wrap=True)
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


class TrainBar(LiveBar):
    """A `Report` for terminals; use it as a context manager."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(
            rich.progress.Progress(
                rich.progress.TextColumn("{task.description:<9}"),
                rich.progress.BarColumn(),
                rich.progress.TaskProgressColumn(),
                rich.progress.TextColumn("{task.fields[numbers]}"),
                console=make_console(stderr=stderr),
            )
        )
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(text, soft_wrap=True)

    def progress(self, stage: str, share: float, numbers: Mapping[str, Any]) -> None:
        """Move the stage's bar."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=1.0, numbers="")
        self._bar.update(self._tasks[stage], completed=share, numbers=_describe(numbers))


def _describe(numbers: Mapping[str, Any]) -> str:
    parts = [f"{numbers['tokens_per_s']:,} tokens/s"]
    if "loss" in numbers:
        depths = " ".join(f"{overlap:.2f}" for overlap in numbers["overlap"])
        parts += [f"loss {numbers['loss']:.3f}", f"acceptance per depth {depths}"]
    if "answer_tokens" in numbers:
        parts.append(f"{numbers['answer_tokens']:,} answer tokens")
    if numbers.get("time_left_s") is not None:
        parts.append(f"{numbers['time_left_s']} s left")
    return " · ".join(parts)
