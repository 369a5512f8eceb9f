"""Replaying functions over static tensors: as CUDA graphs on a GPU, as calls elsewhere.

In:  a function of a shape and a tensor of numbers, which waits for nothing and reads nothing on the
     host. Out: what it returns, by one launch.
Graphs are captured when a shape comes up, share one pool of memory, and are bounded in number: the
one not used for longest goes. Sharing memory is sound because replays follow one another, and what
one returns is read before the next begins: all behind each other on one stream.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from headlong.arrays import IntArray

Shape = TypeVar("Shape", bound=Hashable)
Result = TypeVar("Result")

MOST_GRAPHS = 64


class _Graph(NamedTuple):
    numbers: Tensor
    graph: Any
    result: Any


class Replay(Generic[Shape, Result]):
    """One function, replayed for every shape it was called with."""

    def __init__(
        self,
        function: Callable[[Shape, Tensor], Result],
        idle_numbers: Callable[[Shape], IntArray],
        device: torch.device,
    ) -> None:
        """Replay `function` on a device; of `idle_numbers` it makes nothing that is read."""
        self._function = function
        self._idle_numbers = idle_numbers
        self._device = device
        self._graphs: OrderedDict[Shape, _Graph] = OrderedDict()
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def __call__(self, shape: Shape, numbers: IntArray) -> Result:
        """Begin the function; its result may be computed later, in the order of the stream."""
        if self._device.type != "cuda":
            return self._function(shape, torch.from_numpy(numbers))
        graph = self._graphs.get(shape) or self._capture(shape)
        self._graphs.move_to_end(shape)
        # From memory that is not pinned: the driver has read it once the call returns.
        graph.numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
        graph.graph.replay()
        result: Result = graph.result
        return result

    def clear(self) -> None:
        """Forget all graphs, and give their memory back."""
        self._graphs.clear()
        self._pool = None

    def _capture(self, shape: Shape) -> _Graph:
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        numbers = torch.from_numpy(self._idle_numbers(shape)).to(self._device)
        self._function(shape, numbers)  # compiles kernels and makes what is kept of weights
        torch.cuda.synchronize(self._device)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = self._function(shape, numbers)
        self._graphs[shape] = _Graph(numbers, graph, result)
        return self._graphs[shape]


class Fetched:
    """Numbers on their way from the device."""

    def __init__(self, source: Tensor) -> None:
        """Begin to fetch a tensor, which may change once the stream has come by."""
        self._event: Any = None
        self._held = source
        if source.device.type == "cuda":
            self._held = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._held.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> Any:
        """Wait for the numbers; return them as an array."""
        if self._event is not None:
            self._event.synchronize()
        return self._held.numpy()
