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


def make_launcher(device: torch.device) -> Launch:
    """Return what launches kernels on a device."""
    is_cuda = device.type == "cuda"
    return partial(_launch, is_cuda and torch.cuda.get_device_capability(device) >= _HOPPER)


def _launch(
    is_overlapped: bool,
    kernel: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    **options: int,
) -> None:
    if is_overlapped:
        options["launch_pdl"] = True
    kernel[grid](*arguments, **constants, PDL=is_overlapped, **options)
