"""Faults of a device: memory that runs out, and a device that is lost.

In:  work that may fail. Out: nothing, or an error that says what to do. A device that is lost
stays lost for this process: everything after that is refused at once, so that nothing hangs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from headlong.errors import EngineError


class DeviceMemoryError(EngineError):
    """There is too little memory; the device is well, and what was given back may help."""


@dataclass(slots=True)
class DeviceFaults:
    """What has become of one device."""

    lost: EngineError | None = None
    """Why the device cannot be used any more."""

    def check(self) -> None:
        """Refuse to go on with a device that is lost."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)  # or it grows with every request

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Stand around work on the device."""
        self.check()
        try:
            yield
        except RuntimeError as error:
            if "out of memory" in str(error):  # torch's own, or what the driver says of graphs
                raise DeviceMemoryError(
                    f"The GPU has too little free memory: {_first_line(error)}",
                    "Leave the engine less memory for caches (limits.kv_bytes), run fewer requests "
                    "at once, or end what else uses the GPU.",
                ) from error
            if not is_device_lost(error):
                raise
            self.lost = EngineError(
                f"The GPU failed: {_first_line(error)}",
                "Start the program again; if that does not help, look at the driver's log "
                "(nvidia-smi, dmesg).",
            )
            raise self.lost from error


def is_device_lost(error: RuntimeError) -> bool:
    """Tell whether a device that raised this can still be used."""
    kind = getattr(torch, "AcceleratorError", None)  # older releases raise plain RuntimeErrors
    is_of_device = kind is not None and isinstance(error, kind)
    if is_of_device or "CUDA error" in str(error):
        return True
    # A launch of Triton's fails for its own reasons, or says what kernels before it did.
    return "Triton Error [CUDA]" in str(error) and not _answers()


def _answers() -> bool:
    try:
        torch.cuda.synchronize()
    except (RuntimeError, AssertionError):
        return False
    return True


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."
