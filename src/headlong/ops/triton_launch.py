"""Launch Triton kernels, each beginning while the one before still runs where the card can do that.

Such a kernel waits for the one before by itself, before it reads what that may have written.
"""

from typing import Any


class Launcher:
    """Launches kernels that take a constant PDL: whether they overlap."""

    def __init__(self, is_overlapped: bool) -> None:
        self.is_overlapped = is_overlapped

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
        **options: int,
    ) -> None:
        """Launch a kernel over a grid of programs."""
        if self.is_overlapped:
            options["launch_pdl"] = True
        kernel[grid](*arguments, **constants, PDL=self.is_overlapped, **options)
