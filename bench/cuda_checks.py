"""The CUDA kernels against plain torch, and a row's bits in passes of all sizes."""

import torch
from cuda_shapes import LARGE, SMALL, Model, Pass
from cuda_timing import make_ops, say

from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks

TWINS = ((SMALL, "bf16"), (LARGE, "bf16"), (SMALL, "q4"), (SMALL, "q8"), (SMALL, "q6"))
CASES = (
    (SMALL, "bf16", 4),
    (LARGE, "bf16", 2),
    (SMALL, "q4", 2),
    (LARGE, "q4", 1),
    (SMALL, "q8", 2),
    (SMALL, "q6", 2),
)
COUNTS = (1, 2, 3, 4, 8, 16, 20, 32, 64, 100, 300)
CHUNK = 512
SCORED = 64


def check_twin() -> None:
    """Compare a layer and the LM head with plain torch, in the same type."""
    for shape, kind in TWINS:
        ops = make_ops()
        model = Model(ops, shape, kind, layers=1)
        results = []
        for paged in (ops.paged, PlainPagedBlocks(ops)):
            ops.paged = paged
            work = Pass(model, 3, 256)
            found = [work.run(work.rows([0] * 70, list(range(70))))]
            rows = work.rows([0, 0, 2, -1, 1], [70, 71, 0, 0, 0])
            found += [work.run(rows, with_logits=scored)[[0, 1, 2, 4]] for scored in (False, True)]
            results.append([one.float() for one in found])
        away = [
            f"{((a - b).abs().max() / b.abs().max()).item():.4f}"
            for a, b in zip(*results, strict=True)
        ]
        say(f"  twin {shape.name} {kind}: many rows {away[0]}, few {away[1]}, logits {away[2]}")
    say("  (largest difference / largest number)")


def check_bits(case: int) -> None:
    """Compare bits between one chunk of rows and passes of other sizes, with others beside them."""
    shape, kind, layers = CASES[case]
    wrong = differing(Model(make_ops(), shape, kind, layers))
    say(f"  bits {shape.name} {kind} {layers} layers: {wrong[:12] if wrong else 'all equal'}")


def differing(model: Model) -> list[str]:
    """Return in which passes a row's bits are others than in one chunk."""
    whole = Pass(model, 4, 2 * CHUNK)
    first = whole.run(whole.rows([0] * CHUNK, list(range(CHUNK))))
    scores = scored(model, first[-SCORED:])
    pages = whole.table[0, : CHUNK // 64].long()
    wrong = []
    for count in COUNTS:
        work = Pass(model, 4, 2 * CHUNK)
        begin = CHUNK - max(count, min(3 * count, 48)) // count * count
        work.run(work.rows([0] * begin, list(range(begin))))
        for start in range(begin, CHUNK, count):
            x = among_others(work, start, count)
            if not torch.equal(x, first[start : start + count]):
                rows = int((x != first[start : start + count]).any(1).sum())
                wrong.append(f"{count} rows at {start}: {rows} of them")
        last = x[-SCORED:]
        if not torch.equal(scored(model, last), scores[-len(last) :]):
            wrong.append(f"{count} rows: logits")
        for layer, (one, other) in enumerate(zip(work.pages, whole.pages, strict=True)):
            if not all(torch.equal(a[pages], b[pages]) for a, b in zip(one, other, strict=True)):
                wrong.append(f"{count} rows: keys of layer {layer}")
    return wrong


def among_others(work: Pass, start: int, count: int) -> torch.Tensor:
    """Run some rows of slot 0; beside them, where they are few, rows of others and empty ones."""
    positions = list(range(start, start + count))
    if count >= CHUNK // 8:
        return work.run(work.rows([0] * count, positions))
    rows = work.rows([1] * 2 + [0] * count + [2, -1], [0, 1, *positions, 5, 0])
    return work.run(rows)[2 : 2 + count]


def scored(model: Model, x: torch.Tensor) -> torch.Tensor:
    """Return logits of rows."""
    return model.ops.paged.logits(x.contiguous(), model.final_norm, model.lm_head)
