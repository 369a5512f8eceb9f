"""Captured work and its time on the GPU, for the benches of kernels; on the CPU plain calls."""

import time
from collections.abc import Callable

import torch
from cuda_shapes import Model, Pass

from headlong.ops.cuda.ops import CudaOps
from headlong.ops.cuda.triton_tiles import Tile, Tiles, Weights

CONTEXT = 512
BANDWIDTH = 4.3e12
RATE = 790e12
"""Of an H200, until `measure_ceilings` has looked."""

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Chosen(Tiles):
    """Tiles of which some are set by hand."""

    def __init__(self) -> None:
        self.own: dict[Weights, Tile] = {}

    def few_rows(self, weights: Weights) -> Tile:
        """Return the tile that was set, or the usual one."""
        return self.own.get(weights) or super().few_rows(weights)


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return the graph of some work, run before so that everything is compiled."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def milliseconds(work: Callable[[], object], repeats: int = 30) -> float:
    """Return the time of one replay, the median of five measurements."""
    if DEVICE.type == "cpu":
        return _call_milliseconds(work)
    graph = captured(work)
    for _ in range(5):
        graph.replay()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / repeats)
    return sorted(times)[2]


def _call_milliseconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return (time.perf_counter() - began_s) * 1e3


def measure_ceilings(size: int = 8192) -> dict[str, float]:
    """Return what a copy moves, bytes read and written, and what a bf16 product computes."""
    source = torch.randn(16 * size * size, device=DEVICE).bfloat16()
    target = torch.empty_like(source)
    a, b = (source[i * size * size :][: size * size].view(size, size) for i in range(2))
    copy_ms = milliseconds(lambda: target.copy_(source), 10)
    product_ms = milliseconds(lambda: a @ b, 10)
    copied, computed = 2 * source.nbytes / copy_ms * 1e3, 2 * size**3 / product_ms * 1e3
    return {"bandwidth": copied, "rate": computed}


def make_ops() -> CudaOps:
    """Return the backend with tiles that can be set."""
    ops = CudaOps(DEVICE)
    ops.paged.tiles = Chosen()  # type: ignore[attr-defined]
    return ops


def steps_of(model: Model, work: Pass, count: int) -> dict[str, Callable[[], object]]:
    """Return single kernels over all layers: nothing stays in a cache."""
    paged, s, device = model.ops.paged, model.shape, model.ops.device
    rows = work.rows(list(range(count)), [CONTEXT] * count)
    x = torch.randn(count, s.hidden, device=device, dtype=model.ops.dtype)
    wide = torch.randn(count, s.heads * s.head_dim, device=device, dtype=model.ops.dtype)
    qkv = torch.randn(
        count, (s.heads + 2 * s.kv_heads) * s.head_dim, device=device, dtype=model.ops.dtype
    )

    def over(step: Callable[[object, object], object]) -> Callable[[], object]:
        return lambda: [step(one, keys) for one, keys in zip(model.layers, work.pages, strict=True)]

    return {
        "qkv": over(lambda one, keys: paged.qkv(x, one.attention)),
        "attend": over(lambda one, keys: paged.attend(qkv, one.attention, keys, rows)),
        "output": over(lambda one, keys: paged.output(wide, one.attention, x)),
        "mlp": over(lambda one, keys: paged.mlp(x, one.mlp)),
        "head": lambda: paged.logits(x, model.final_norm, model.lm_head),
    }
