"""What the CUDA kernels compute and cost on this card: one run of a few minutes.

    PYTHONPATH=src:GGUF_WHEEL python bench/cuda_kernels.py [--seconds 150] [--only bits,small,…]

Sections, the most important first: `checks` (against plain torch; a row's bits for any number of
rows, chunks and neighbours), `small` and `large` (a captured pass, and single kernels, of the 135M
and the 8B shape with random weights), `levels` (8 and 4 bits), `prefill`, `tiles` (other tile
sizes; the best of each). A section that fails says so, and the next one runs. The checks run in
processes beside each other, with others that compile what is timed later.
"""

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

import torch
from cuda_checks import CASES, check_bits, check_twin
from cuda_shapes import LARGE, SMALL, Model, Pass, Shape
from cuda_tiles import WORKERS, compile_share, search_tiles
from cuda_timing import BANDWIDTH, CONTEXT, DEVICE, RATE, make_ops, milliseconds, say, steps_of

SECTIONS = ("checks", "small", "large", "levels", "prefill", "tiles")


COUNTS = (1, 2, 4, 6, 8, 16, 64)


def time_passes(shape: Shape, kind: str = "bf16", counts: tuple[int, ...] = COUNTS) -> None:
    """Time whole passes at context 512, and the parts of one; 64 rows are of 64 slots."""
    model = Model(make_ops(), shape, kind)
    work = Pass(model, 64, 1024)
    times = {}
    for count in counts:
        slots = list(range(count)) if count > 16 else [0] * count
        first = [CONTEXT] * count if count > 16 else list(range(CONTEXT, CONTEXT + count))
        times[count] = milliseconds(partial(work.run, work.rows(slots, first), with_logits=True))
    one = times[1]
    told = ", ".join(f"{n}: {took:.3f} ms ({took / one:.2f})" for n, took in times.items())
    share = model.num_bytes / one * 1e3 / BANDWIDTH
    say(f"  pass {shape.name} {kind}, rows {told}; {1e3 / one:.0f}/s, {share:.0%} of bandwidth")
    for count in (1, 8):
        steps = steps_of(model, work, count)
        parts = {name: milliseconds(step) * 1e3 for name, step in steps.items()}
        each = {
            name: took / (1 if name == "head" else shape.layers) for name, took in parts.items()
        }
        told = ", ".join(f"{name} {took:.2f}" for name, took in each.items())
        say(f"    {count} rows, µs: {told}; together {sum(parts.values()) / 1e3:.3f} ms")


def time_levels() -> None:
    """Time passes over weights of 4 and 8 bits."""
    for shape, kind in ((LARGE, "q4"), (LARGE, "q8"), (SMALL, "q4")):
        time_passes(shape, kind, (1, 8))


def time_prefill() -> None:
    """Time a chunk of 2,048 rows from position 0."""
    for shape, kind in ((LARGE, "bf16"), (SMALL, "bf16"), (LARGE, "q4")):
        time_chunk(Model(make_ops(), shape, kind, layers=4), 2048)


def time_chunk(model: Model, count: int) -> None:
    """Time a chunk of rows, and the parts of one of its layers."""
    shape, paged = model.shape, model.ops.paged
    work = Pass(model, 1, count)
    rows = work.rows([0] * count, list(range(count)))
    took = milliseconds(partial(work.run, rows), 5) / len(model.layers)
    matrices = [linear.weight for linear in model.layers[0].linears]
    flops = 2 * count * sum(one.num_outputs * one.num_inputs for one in matrices)
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    x, qkv = (
        torch.randn(count, size, device=DEVICE, dtype=torch.bfloat16)
        for size in (shape.hidden, width)
    )
    one, keys = model.layers[0], work.pages[0]
    attend = milliseconds(lambda: paged.attend(qkv, one.attention, keys, rows), 5)
    mlp = milliseconds(lambda: paged.mlp(x, one.mlp), 5)
    say(
        f"  prefill {shape.name} {model.kind}: {took:.3f} ms a layer, "
        f"{flops / took * 1e3 / RATE:.0%} of {RATE / 1e12:.0f} TFLOP/s; "
        f"attend {attend:.3f} ms, mlp {mlp:.3f} ms"
    )


WARM = ((SMALL, "bf16"), (LARGE, "bf16"), (LARGE, "q4"), (LARGE, "q8"), (SMALL, "q4"))


def warm(number: int) -> None:
    """Compile what is timed of one model."""
    model = Model(make_ops(), *WARM[number], layers=1)
    work = Pass(model, 64, 2048)
    for count in (1, 64):
        work.run(work.rows(list(range(count)), [0] * count), with_logits=True)
    work.run(work.rows([0] * 2048, list(range(2048))))


def check() -> None:
    """Run the checks and all compilation, each in a process of its own."""
    jobs = [["twin"], *(["bits", str(n)] for n in range(len(CASES)))]
    jobs += [["warm", str(n)] for n in range(len(WARM))]
    jobs += [["tiles", str(n)] for n in range(WORKERS)]
    begun = [
        subprocess.Popen(
            [sys.executable, __file__, "--job", *job],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for job in jobs
    ]
    for job, process in zip(jobs, begun, strict=True):
        told, _ = process.communicate()
        if process.returncode or job[0] in ("twin", "bits"):
            say(told[-1200:].rstrip())


JOBS: dict[str, Callable[..., None]] = {
    "twin": check_twin,
    "bits": check_bits,
    "warm": warm,
    "tiles": compile_share,
}
RUNS: dict[str, Callable[[], None]] = {
    "checks": check,
    "small": partial(time_passes, SMALL),
    "large": partial(time_passes, LARGE),
    "levels": time_levels,
    "prefill": time_prefill,
    "tiles": search_tiles,
}


def main() -> None:
    """Run the sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        JOBS[args.job[0]](*map(int, args.job[1:]))
        return
    begin = time.perf_counter()
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, context {CONTEXT}")
    for name in args.only.split(","):
        spent = time.perf_counter() - begin
        if spent > args.seconds:
            say(f"{name}: left out after {spent:.0f} s")
            continue
        say(f"{name} (from {spent:.0f} s)")
        try:
            RUNS[name]()
        except Exception:
            say(traceback.format_exc(limit=-4)[-1500:])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
