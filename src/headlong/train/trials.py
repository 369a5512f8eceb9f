"""Trials: a few steps of growing sizes, to estimate the time and memory of the full size.

In:  a function that runs a few steps of a given size. Out: seconds and bytes of the full size.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

ENOUGH_S = 0.5
"""The second or a later trial that takes this long is the last one."""
_TOO_LONG_S = 3.0
"""A first trial that takes this long is the only one."""
_GROWTH = 4
_PEAK_FACTOR = 4 / 3
"""Peak memory of a step on the CPU relative to its saved tensors. Measured with the default model:
320 more tokens through six depths added 0.345 GB of resident memory and 0.260 GB of tensors."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds and bytes of a few steps of one size."""

    size: int
    seconds: Mapping[str, float]
    """In proportion to the size."""
    num_bytes: int
    fixed_seconds: Mapping[str, float] = field(default_factory=dict)
    """The same at any size."""

    @property
    def scaled_seconds(self) -> float:
        """Sum over the parts that grow with the size."""
        return sum(self.seconds.values())


def extrapolate(run: Callable[[int], Trial], full: int, *, compiles: bool) -> Trial:
    """Run trials of growing sizes and scale the last one up to the full size.

    Time grows in proportion to the size, except for what is fixed. Memory grows linearly, by the
    last two trials. If the run compiles its functions, which it may do anew for a new size, every
    size runs twice.
    """

    def run_warm(size: int) -> Trial:
        first = run(size)
        return run(size) if compiles else first

    first = run_warm(1)
    is_warm = compiles or first.scaled_seconds >= _TOO_LONG_S
    trials = [first if is_warm else run(1)]
    while (size := trials[-1].size) < full:
        if trials[-1].scaled_seconds >= (ENOUGH_S if len(trials) > 1 else _TOO_LONG_S):
            break
        try:
            trials.append(run_warm(min(full, size * _GROWTH)))
        except (MemoryError, torch.OutOfMemoryError):
            break
    last = trials[-1]
    seconds = {name: one * full / last.size for name, one in last.seconds.items()}
    if len(trials) == 1:
        return Trial(full, seconds, last.num_bytes * full // last.size, last.fixed_seconds)
    slope = (last.num_bytes - trials[-2].num_bytes) / (last.size - trials[-2].size)
    num_bytes = last.num_bytes + round(max(0.0, slope) * (full - last.size))
    return Trial(full, seconds, num_bytes, last.fixed_seconds)


def time_call(device: torch.device, call: Callable[[], Any]) -> float:
    """Return the seconds a call takes, including its work on the device."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    started = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - started


class ActivationMemory:
    """Measures the activation memory of a step.

    On CUDA this is the peak allocation, on the CPU the size of the tensors saved for the backward
    pass times a factor.
    """

    def __init__(self, device: torch.device) -> None:
        self.num_bytes = 0
        self._device = device
        self._allocated_before = 0
        self._storages: set[int] = set()
        hooks = torch.autograd.graph.saved_tensors_hooks
        self._hooks = hooks(self._count_saved, lambda saved: saved)

    def __enter__(self) -> "ActivationMemory":
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._allocated_before = torch.cuda.memory_allocated(self._device)
        else:
            self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._device.type == "cuda":
            self.num_bytes = torch.cuda.max_memory_allocated(self._device) - self._allocated_before
        else:
            self._hooks.__exit__(*error)
            self.num_bytes = round(_PEAK_FACTOR * self.num_bytes)

    def _count_saved(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self.num_bytes += storage.nbytes()
        return tensor
