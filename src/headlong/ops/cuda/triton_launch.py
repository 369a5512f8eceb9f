"""Launch Triton kernels, each beginning while the one before still runs where the card can do that.

Such a kernel waits for the one before by itself, before it reads what that may have written.
"""

from functools import partial
from typing import Any, Protocol

import torch

_HOPPER = (9, 0)


class Launch(Protocol):
    """Launches a kernel over a grid of programs; tests put a compiler in its place."""

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
        **options: int,
    ) -> None:
        """Launch a kernel; `options` are Triton's own, as `num_warps`."""


def can_overlap(device: torch.device) -> bool:
    """Tell whether a kernel can begin on a device while the one before still runs."""
    if device.type != "cuda":
        return False
    found: tuple[int, int] = torch.cuda.get_device_capability(device)
    return found >= _HOPPER


def make_launcher(*, overlaps: bool) -> Launch:
    """Return what launches kernels, each beginning while the one before runs or behind it."""
    return partial(_launch, overlaps)


def _launch(
    overlaps: bool,
    kernel: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    **options: int,
) -> None:
    if overlaps:
        options["launch_pdl"] = True
    kernel[grid](*arguments, **constants, PDL=overlaps, **options)
