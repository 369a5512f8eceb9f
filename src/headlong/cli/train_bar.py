"""The bar `headlong train` draws: share done, tokens/s, loss, acceptance per depth, time left."""

from collections.abc import Mapping
from typing import Any, Self

import rich.progress

from headlong.cli.live_bar import LiveBar
from headlong.cli.output import make_console


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
