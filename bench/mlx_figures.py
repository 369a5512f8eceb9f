"""What the MLX backend does in a pass and in a round, and mlx-lm's passes on the same folder.

    python bench/mlx_figures.py [MODEL] [--head PATH] [--rows 1,2,4,5,8] [--context 256]
                                [--pairs 20] [--tokens 48] [-k 3] [--json FILE]

A pass: the bytes of weights that its products read, beside those of the model. A round of drafting:
how often the host waits for the device, how often it has something computed without waiting, and
how many graphs were compiled. Then times: passes over so many rows behind a context, logits
included, ours and mlx-lm's in turn, where mlx-lm is installed and reads MODEL's folder. Each
ratio is the median of the pairs' own, mlx-lm's time over ours, with the quartiles beside it; the
time that the processor spent, of all threads, is compared in the same way, since it depends less on
other programs. `host` is what passes before the device has its work. The last line is JSON.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from headlong.bench.pass_cost import PassTimer
from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.errors import HeadlongError
from headlong.llm import LLM
from headlong.models.traffic import pass_bytes
from headlong.models.transformer import Backbone
from headlong.ops.mlx import weights as mlx_weights
from headlong.ops.mlx.graphs import COMPILE_AFTER
from headlong.ops.mlx.host import enter
from headlong.ops.mlx.ops import MlxOps
from headlong.ops.mlx.weights import MlxMatrix
from headlong.provenance import read_provenance


class Times(NamedTuple):
    """What one pass took, in seconds."""

    wall: float
    processor: float
    host: float


def main() -> int:
    """Measure and print."""
    args = _parse()
    try:
        llm = LLM.load(args.model, backend="mlx", head=args.head, drafter="auto")
    except HeadlongError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    enter()
    backbone = llm.backbone
    assert isinstance(backbone.ops, MlxOps)
    rows = [int(count) for count in args.rows.split(",")]
    figures: dict[str, Any] = {
        "backend": backbone.ops.name,
        "weights_bytes": pass_bytes(backbone),
        "bytes_read_by_rows": {count: bytes_read(backbone, count) for count in rows},
        "round": rounds(llm, args),
        "passes": {},
    }
    theirs = _theirs(llm.model_path, args.context)
    ours = PassTimer(backbone, (), args.context)
    for count in rows:
        figures["passes"][count] = compare(_timer(ours, count), theirs and theirs(count), args)
    figures["backend"] = f"{backbone.ops.name}, {backbone.ops.note}"  # graphs have been tried
    for name, value in figures.items():
        sys.stdout.write(f"{name:20} {value}\n")
    provenance = read_provenance().to_dict() | {"argv": None}
    for package in ("mlx", "mlx-lm"):
        if importlib.util.find_spec(package.replace("-", "_")) is not None:
            provenance["versions"][package] = importlib.metadata.version(package)
    record = figures | {"provenance": provenance}
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--head", type=Path, help="which head drafts")
    parser.add_argument("--rows", default="1,2,4,5,8")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48, help="of the answer that is drafted")
    parser.add_argument("-k", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    return parser.parse_args()


def bytes_read(backbone: Backbone, num_rows: int) -> int:
    """Return the bytes of all matrices that the products of one pass take."""
    backbone.logits(backbone.forward([np.arange(num_rows)], [backbone.make_cache()]).normed)
    read = [0]

    def counting(function: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            read[0] += size(*args)
            return function(*args)

        return run

    graphs = backbone.ops.graphs  # type: ignore[attr-defined]
    was_on, graphs.is_on = graphs.is_on, False
    kept = MlxMatrix.multiply, mlx_weights.multiply_rows
    MlxMatrix.multiply = counting(kept[0], lambda one, x: one.num_bytes)  # type: ignore[method-assign]
    mlx_weights.multiply_rows = counting(
        kept[1], lambda x, parts, *_: -(-len(x) // 8) * sum(int(part.nbytes) for part in parts)
    )
    try:
        cache = backbone.make_cache()
        backbone.logits(backbone.forward([np.arange(num_rows)], [cache]).normed)
    finally:
        MlxMatrix.multiply, mlx_weights.multiply_rows = kept  # type: ignore[method-assign]
        graphs.is_on = was_on
    return read[0]


def rounds(llm: LLM, args: argparse.Namespace) -> dict[str, Any]:
    """Draft K tokens a round; count waits and graphs."""
    backbone = llm.backbone
    engine = Engine.for_model(backbone, llm.drafter, EngineLimits(honour_k=True))
    stopping = StopParams(max_tokens=args.tokens, ignore_eos=True)
    prompt = tuple(llm.tokenizer.encode("Count: one, two, three, four, five, six, seven, eight,"))
    running = engine.submit(Request(prompt, SamplingParams(), stopping, mtp=args.k))
    while running.stats.rounds < 2 and running.finish_reason is None:
        engine.step()
    calls = {"eval": 0, "async_eval": 0}
    kept = {name: getattr(mx, name) for name in calls}

    def count(name: str) -> Callable[..., None]:
        def run(*arrays: Any) -> None:
            calls[name] += 1
            kept[name](*arrays)

        return run

    graphs = backbone.ops.graphs  # type: ignore[attr-defined]
    before, num_graphs = running.stats.rounds, len(graphs)
    try:
        for name in calls:
            setattr(mx, name, count(name))
        while running.finish_reason is None:
            engine.step()
    finally:
        for name, function in kept.items():
            setattr(mx, name, function)
    num_rounds = running.stats.rounds - before
    num_compiled = len(graphs) - num_graphs
    return {
        "rounds": num_rounds,
        "drafted": running.stats.num_drafted,
        # A new graph is read, and so are the blocks that it is compared with.
        "waits_per_round": (calls["eval"] - 2 * num_compiled) / max(1, num_rounds),
        "starts_per_round": calls["async_eval"] / max(1, num_rounds),
        "graphs_compiled": len(graphs),
        "graphs_are_on": graphs.is_on,
    }


def _timer(passes: PassTimer, count: int) -> Callable[[], Times]:
    def run() -> Times:
        start, busy = time.perf_counter(), time.process_time()
        hidden = passes.forward(count, passes.cache)
        planned = time.perf_counter()
        passes.backbone.logits(hidden.normed)
        times = Times(time.perf_counter() - start, time.process_time() - busy, planned - start)
        passes.cache.commit(0)
        return times

    graphs = passes.backbone.ops.graphs  # type: ignore[attr-defined]
    for _ in range(COMPILE_AFTER if graphs.is_on else 0):  # until passes of this shape are a graph
        run()
    return run


def _theirs(model: Path, context: int) -> Callable[[int], Callable[[], Times]] | None:
    """Return what times passes of mlx-lm; None where it is not there or cannot read the model."""
    if not model.is_dir() or importlib.util.find_spec("mlx_lm") is None:
        return None
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

    try:
        network, tokenizer = load(str(model))[:2]
    except Exception as error:
        sys.stderr.write(f"mlx-lm does not load {model}: {error}\n")
        return None
    cache = make_prompt_cache(network)
    rng = np.random.default_rng(0)

    def ids(count: int) -> Any:
        return mx.array(rng.integers(0, tokenizer.vocab_size, count))[None]

    np.array(network(ids(context), cache=cache).astype(mx.float32))

    def timer(count: int) -> Callable[[], Times]:
        def run() -> Times:
            start, busy = time.perf_counter(), time.process_time()
            logits = network(ids(count), cache=cache).astype(mx.float32)
            planned = time.perf_counter()
            np.array(logits)
            times = Times(time.perf_counter() - start, time.process_time() - busy, planned - start)
            trim_prompt_cache(cache, count)
            return times

        return run

    return timer


def compare(
    ours: Callable[[], Times], theirs: Callable[[], Times] | None, args: argparse.Namespace
) -> dict[str, Any]:
    """Time passes in turn; the side that goes first changes."""
    sides = [ours] if theirs is None else [ours, theirs]
    for side in sides:
        side()  # grows what grows once
    pairs = []
    for number in range(args.pairs):
        order = sides if number % 2 else sides[::-1]
        times = {side: side() for side in order}
        pairs.append([times[side] for side in sides])
    found: dict[str, Any] = {"pairs": args.pairs}
    for side, name in zip(range(len(sides)), ("ours", "mlx_lm"), strict=False):
        for field in Times._fields:
            values = [getattr(pair[side], field) for pair in pairs]
            found[f"{name}_{field}_ms"] = round(1e3 * statistics.median(values), 3)
    if theirs is not None:
        for field in ("wall", "processor"):
            found[f"{field}_ratio"] = _spread(
                [getattr(pair[1], field) / getattr(pair[0], field) for pair in pairs]
            )
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = (round(one, 3) for one in statistics.quantiles(values, n=4))
    return {"median": middle, "low": low, "high": high}


if __name__ == "__main__":
    sys.exit(main())
