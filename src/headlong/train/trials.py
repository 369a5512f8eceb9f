"""Trials: a few steps of growing sizes, to tell what the full size takes on this very device.

In:  what runs a few steps of a size. Out: seconds and bytes of the full size.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ENOUGH_S = 0.5
"""A trial that takes so long is not followed by a larger one …"""
_TOO_LONG_S = 3.0
"""… but two are wanted, unless one takes so long."""
_GROWTH = 4
_PASSING = 4 / 3
"""What a step's peak is on the CPU against what it keeps: 0.345 to 0.260 GB for the default model,
resident memory against tensors kept, by 320 tokens more through six depths."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Seconds and bytes of a few steps of one size."""

    size: int
    seconds: Mapping[str, float]
    num_bytes: int

    @property
    def total_seconds(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())


def try_sizes(device: torch.device, run: Callable[[int], Trial], full: int) -> Trial:
    """Try growing sizes and scale the last one up; bytes by what the last growth added."""
    first = run(1)  # on CUDA compilers work now
    is_warm = device.type == "cpu" and first.total_seconds >= _TOO_LONG_S
    trials = [first if is_warm else run(1)]
    while (size := trials[-1].size) < full:
        if trials[-1].total_seconds >= (ENOUGH_S if len(trials) > 1 else _TOO_LONG_S):
            break
        try:
            trials.append(run(min(full, size * _GROWTH)))
        except (MemoryError, torch.OutOfMemoryError):
            break
    last = trials[-1]
    seconds = {name: one * full / last.size for name, one in last.seconds.items()}
    if len(trials) == 1:
        return Trial(full, seconds, last.num_bytes * full // last.size)
    slope = (last.num_bytes - trials[-2].num_bytes) / (last.size - trials[-2].size)
    return Trial(full, seconds, last.num_bytes + round(max(0.0, slope) * (full - last.size)))


def clock(device: torch.device, work: Callable[[], Any]) -> float:
    """Return how long some work takes, the device's part included."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    started = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - started


class KeptBytes:
    """Counts the bytes that a step keeps for its way back; on CUDA the most that it allocates."""

    def __init__(self, device: torch.device) -> None:
        self.num_bytes = 0
        self._device = device
        self._begun = 0
        self._storages: set[int] = set()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept)

    def __enter__(self) -> "KeptBytes":
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._begun = torch.cuda.memory_allocated(self._device)
        else:
            self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._device.type == "cuda":
            self.num_bytes = torch.cuda.max_memory_allocated(self._device) - self._begun
        else:
            self._hooks.__exit__(*error)
            self.num_bytes = round(_PASSING * self.num_bytes)

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self.num_bytes += storage.nbytes()
        return tensor
