"""What captured passes of random models cost on this card, and single kernels of them.

In:  a shape and a format of weights. Out: milliseconds and shares, also said line by line.
"""

from functools import partial
from typing import Any

import torch
from cuda_report import say
from cuda_shapes import LARGE, SMALL, Model, Pass, Shape
from cuda_timing import BANDWIDTH, CONTEXT, DEVICE, RATE, make_ops, milliseconds, steps_of

COUNTS = (1, 2, 4, 6, 8, 16, 64)


def time_passes(
    shape: Shape, kind: str = "bf16", counts: tuple[int, ...] = COUNTS
) -> dict[str, Any]:
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
    parts = {count: _time_parts(model, work, count) for count in (1, 8)}
    return {"ms": times, "bytes": model.num_bytes, "share": share, "us_a_layer": parts}


def _time_parts(model: Model, work: Pass, count: int) -> dict[str, float]:
    """Return the microseconds of each part: of one layer, and of the LM head."""
    steps = steps_of(model, work, count)
    parts = {name: milliseconds(step) * 1e3 for name, step in steps.items()}
    num_layers = len(model.layers)
    each = {name: took / (1 if name == "head" else num_layers) for name, took in parts.items()}
    told = ", ".join(f"{name} {took:.2f}" for name, took in each.items())
    say(f"    {count} rows, µs: {told}; together {sum(parts.values()) / 1e3:.3f} ms")
    return each


def time_levels() -> dict[str, Any]:
    """Time passes over weights of 4 and 8 bits."""
    kinds = ((LARGE, "q4"), (LARGE, "q8"), (SMALL, "q4"))
    return {f"{shape.name} {kind}": time_passes(shape, kind, (1, 8)) for shape, kind in kinds}


def time_prefill() -> dict[str, Any]:
    """Time a chunk of 2,048 rows from position 0."""
    kinds = ((LARGE, "bf16"), (SMALL, "bf16"), (LARGE, "q4"))
    return {
        f"{shape.name} {kind}": time_chunk(Model(make_ops(), shape, kind, layers=4), 2048)
        for shape, kind in kinds
    }


def time_chunk(model: Model, count: int) -> dict[str, float]:
    """Time a chunk of rows, and the parts of one of its layers."""
    shape, paged = model.shape, model.ops.paged
    work = Pass(model, 1, count)
    rows = work.rows([0] * count, list(range(count)))
    took = milliseconds(partial(work.run, rows), 5) / len(model.layers)
    matrices = [linear.weight for linear in model.layers[0].linears]
    flops = 2 * count * sum(one.num_outputs * one.num_inputs for one in matrices)
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    x, qkv = (
        torch.randn(count, size, device=DEVICE, dtype=model.ops.dtype)
        for size in (shape.hidden, width)
    )
    one, keys = model.layers[0], work.pages[0]
    attend = milliseconds(lambda: paged.attend(qkv, one.attention, keys, rows), 5)
    mlp = milliseconds(lambda: paged.mlp(x, one.mlp), 5)
    share = flops / took * 1e3 / RATE
    say(
        f"  prefill {shape.name} {model.kind}: {took:.3f} ms a layer, {share:.0%} of "
        f"{RATE / 1e12:.0f} TFLOP/s; attend {attend:.3f} ms, mlp {mlp:.3f} ms"
    )
    return {"ms_a_layer": took, "share": share, "attend_ms": attend, "mlp_ms": mlp}


def time_mates() -> dict[str, Any]:
    """Time passes whose rows are turned by the kernel that attends, and by one of their own."""
    from headlong.ops.cuda import triton_attention  # needs Triton

    usual = triton_attention.MOST_MATES
    found = {}
    try:
        for most in (usual, 0):
            say(f"  turned while attending: up to {most} rows")
            triton_attention.MOST_MATES = most
            for shape in (SMALL, LARGE):
                found[f"{shape.name}, {most}"] = time_passes(shape, "bf16", (1, 8))
    finally:
        triton_attention.MOST_MATES = usual
    return found


WARM = ((SMALL, "bf16"), (LARGE, "bf16"), (LARGE, "q4"), (LARGE, "q8"), (SMALL, "q4"))


def warm(number: int) -> None:
    """Compile what is timed of one model."""
    model = Model(make_ops(), *WARM[number], layers=1)
    work = Pass(model, 64, 2048)
    for count in (1, 64):
        work.run(work.rows(list(range(count)), [0] * count), with_logits=True)
    work.run(work.rows([0] * 2048, list(range(2048))))
