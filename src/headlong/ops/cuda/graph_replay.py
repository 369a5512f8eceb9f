"""Replaying functions over static tensors: as CUDA graphs on a GPU, as calls elsewhere.

In:  a function of a shape and a tensor of numbers, which waits for nothing and reads nothing on the
     host. Out: what it returns, by one launch.
Graphs are captured when a shape comes up, share one pool of memory, and are bounded in number: the
one not used for longest goes. Sharing memory is sound because replays follow one another, and what
one returns is read before the next begins: all behind each other on one stream. A shape that cannot
be captured is called instead; the others are replayed.
"""

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from headlong.arrays import IntArray

Shape = TypeVar("Shape", bound=Hashable)
Result = TypeVar("Result")

MOST_GRAPHS = 64

_MOST_FAILED = 3
"""After so many shapes that could not be captured, and none that could, no other is tried."""


class Captured(NamedTuple):
    """Work that was captured."""

    replay: Callable[[], object]
    result: Any
    """Where its result is after a replay."""
    pool: Any
    """The memory it uses in between, which other work may share."""


class _Graph(NamedTuple):
    numbers: Tensor
    captured: Captured


def capture(work: Callable[[], object], pool: Any) -> Captured:
    """Capture work that has run before; nothing of it is done yet."""
    graph = torch.cuda.CUDAGraph()
    cause: RuntimeError | None = None
    # The stream is named, so that a capture that fails leaves it as it was. Other threads are let
    # alone.
    try:
        with (
            _no_collection(),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
        ):
            try:
                result = work()
            except RuntimeError as error:
                cause = error
                raise
    except RuntimeError as error:  # the end of a capture only says that something went wrong
        raise (cause or error) from None
    return Captured(graph.replay, result, graph.pool())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from freeing what is in cycles, as the graphs of an engine that ended.

    A capture may not destroy a graph in its own thread: it would fail.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Replay(Generic[Shape, Result]):
    """One function, replayed for every shape it was called with."""

    def __init__(
        self,
        function: Callable[[Shape, Tensor], Result],
        idle_numbers: Callable[[Shape], IntArray],
        device: torch.device,
        simplify: Callable[[], bool] = lambda: False,
    ) -> None:
        """Replay `function` on a device; of `idle_numbers` it makes nothing that is read.

        Where a capture fails, `simplify` may change how the function runs, and tells whether it
        did: then it is tried again.
        """
        self._function = function
        self._simplify = simplify
        self._idle_numbers = idle_numbers
        self._device = device
        self._graphs: OrderedDict[Shape, _Graph] = OrderedDict()
        self._pool: Any = None
        self.captures = device.type == "cuda"
        """Whether shapes are captured; otherwise functions are called."""
        self.failed: set[Shape] = set()
        """Shapes that could not be captured: functions are called for them, too."""
        self.problem: str | None = None
        """Why the last capture failed that did."""
        self.num_prepared = 0
        """Shapes that had to be prepared so far, which takes longer than a replay."""

    def __len__(self) -> int:
        return len(self._graphs)

    def prepare(self, shape: Shape) -> None:
        """Capture a shape that comes up for the first time."""
        if not self.captures or shape in self._graphs or shape in self.failed:
            return
        self.num_prepared += 1
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        numbers = torch.from_numpy(self._idle_numbers(shape)).to(self._device)
        captured = self._captured(shape, numbers)
        if captured is None:
            self.failed.add(shape)
            self.captures = bool(self._graphs) or len(self.failed) < _MOST_FAILED
            return
        self._pool = captured.pool
        self._graphs[shape] = _Graph(numbers, captured)
        captured.replay()  # the first one takes longer

    def _captured(self, shape: Shape, numbers: Tensor) -> Captured | None:
        """Run a shape and capture it; None where that fails, however it runs."""
        self._function(shape, numbers)  # compiles kernels and makes what is kept of weights
        try:
            return capture(lambda: self._function(shape, numbers), self._pool)
        except RuntimeError as error:  # the function has just run, so what fails is the capture
            if "out of memory" in str(error):  # others may be given back, and it is tried again
                raise
            self.problem = str(error).split("\n")[0].rstrip(".")
        self._pool = None  # torch takes the capture that failed for one that still goes on there
        return self._captured(shape, numbers) if self._simplify() else None

    def __call__(self, shape: Shape, numbers: IntArray) -> Result:
        """Begin the function; its result may be computed later, in the order of the stream."""
        self.prepare(shape)
        # From memory that is not pinned: the driver has read it once the call returns.
        sent = torch.from_numpy(numbers)
        if shape not in self._graphs:
            return self._function(shape, sent.to(self._device, non_blocking=True))
        graph = self._graphs[shape]
        self._graphs.move_to_end(shape)
        graph.numbers.copy_(sent, non_blocking=True)
        graph.captured.replay()
        result: Result = graph.captured.result
        return result

    def clear(self) -> None:
        """Forget all graphs, and give their memory back."""
        self._graphs.clear()
        self._pool = None


class Fetched:
    """Numbers on their way from the device."""

    def __init__(self, source: Tensor) -> None:
        """Begin to fetch a tensor, which may change once the stream has come by."""
        is_cuda = source.device.type == "cuda"
        self._event: Any = None
        self._held = torch.empty(source.shape, dtype=source.dtype, pin_memory=is_cuda)
        self._held.copy_(source, non_blocking=True)
        if is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> Any:
        """Wait for the numbers; return them as an array."""
        if self._event is not None:
            self._event.synchronize()
        return self._held.numpy()
