"""Where MLX and the host meet: the stream of all arrays, reading them back, rows that wait.

Arrays are made lazily and evaluated when a round needs their numbers, in one place, `read`, or
ahead of that where the host has other things to do, `start`.
"""

from threading import Lock
from typing import Any

import mlx.core as mx
import numpy as np

from headlong.arrays import FloatArray
from headlong.ops.numpy.host import NumpyHost, PlainRows

MIN_VERSION = "0.32.0"
"""The first MLX with streams that threads can share."""

if not hasattr(mx, "new_thread_unsafe_stream"):
    raise ImportError(f"MLX {mx.__version__} is too old, {MIN_VERSION} or later is needed")

try:
    _stream = mx.new_thread_unsafe_stream(mx.default_device())
except RuntimeError as error:  # a Mac whose GPU is out of reach, as in a sandbox
    raise ImportError(f"MLX {mx.__version__} has no device here: {error}") from error


_evaluating = Lock()
"""Held while arrays are evaluated: models may run in several threads, and their stream is one."""


def enter() -> None:
    """Make this thread use the one stream all arrays belong to.

    MLX gives every thread a stream of its own and refuses lazy arrays of another one; a server
    loads a model in one thread and runs it in another. One thread at a time uses a model.
    """
    mx.set_default_stream(_stream)


def is_on_metal() -> bool:
    """Tell whether arrays are computed by Apple's GPU."""
    return mx.metal.is_available() and bool(_stream.device.type == mx.gpu)


def start(*arrays: Any) -> None:
    """Have arrays computed while the host goes on."""
    with _evaluating:
        mx.async_eval(*arrays)


def finish(*arrays: Any) -> None:
    """Compute arrays, all at once: the host waits here."""
    with _evaluating:
        mx.eval(*arrays)


def read(*arrays: Any) -> list[FloatArray]:
    """Compute arrays, all at once, and return their numbers as float32."""
    wide = [array.astype(mx.float32) for array in arrays]
    finish(wide)
    return [np.array(array) for array in wide]


class MlxHost(NumpyHost):
    """Picks and indices in numpy; rows that wait for a drafter wait as MLX arrays."""

    def make_rows(self) -> "MlxRows":
        """Return an empty store for rows."""
        return MlxRows()


class MlxRows(PlainRows):
    """Rows as they are; nothing is copied, since MLX's arrays never change."""

    def append(self, rows: Any) -> None:
        """Take some more rows."""
        self.parts.append(rows)

    def first_rows(self, num_rows: int) -> "MlxRows":
        """Return the leading rows."""
        return MlxRows([self.read()[:num_rows]]) if self.parts else MlxRows()

    def read(self) -> Any:
        """Return all rows."""
        return mx.concatenate(self.parts)
