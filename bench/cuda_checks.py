"""The CUDA kernels against plain torch, a row's bits in passes of all sizes, rounds as graphs."""

import numpy as np
import torch
from cuda_report import say
from cuda_rounds import random_backbone
from cuda_shapes import LARGE, SMALL, TINY, Model, Pass
from cuda_timing import DEVICE, make_ops

from headlong.bench.pass_cost import make_stand_in_head
from headlong.config import MtpMode, SamplingParams, StopParams
from headlong.decode.device.runner import DeviceRunner
from headlong.decode.request import Request
from headlong.drafters.head_drafter import RecursiveDrafter
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.ops.cuda.pick import Draw, PickRows, pick_columns
from headlong.ops.cuda.plain_paged_blocks import PlainPagedBlocks

REHEARSED = ((TINY, "bf16"), (TINY, "q4"))
TWINS = ((SMALL, "bf16"), (LARGE, "bf16"), (SMALL, "q4"), (SMALL, "q8"), (SMALL, "q6"))
CASES = (
    (SMALL, "bf16", 4),
    (LARGE, "bf16", 2),
    (SMALL, "q4", 2),
    (LARGE, "q4", 1),
    (SMALL, "q8", 2),
    (SMALL, "q6", 2),
)
ROUNDS = ((SMALL, "bf16"), (SMALL, "q4"))
COUNTS = (1, 2, 3, 4, 8, 16, 20, 32, 64, 100, 300)
CHUNK = 512
SCORED = 64


TOLERANCE = 0.05
"""Of the largest number: kernels and plain torch round at different places."""


def check_twin(case: int) -> bool:
    """Compare a layer and the LM head with plain torch, in the same type."""
    shape, kind = (REHEARSED if DEVICE.type == "cpu" else TWINS)[case]
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
    away = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*results, strict=True)]
    told = ", ".join(
        f"{name} {value:.4f}"
        for name, value in zip(("many rows", "few", "logits"), away, strict=True)
    )
    say(f"twin {shape.name} {kind}: {told} of the largest number")
    return all(value < TOLERANCE for value in away)


def check_bits(case: int) -> bool:
    """Compare bits between one chunk of rows and passes of other sizes, with others beside them."""
    shape, kind, layers = CASES[case]
    wrong = differing(Model(make_ops(), shape, kind, layers))
    say(f"bits {shape.name} {kind} {layers} layers: {wrong[:12] if wrong else 'all equal'}")
    return not wrong


def check_picks(case: int) -> bool:
    """Compare picks of rows together with those of each alone, ties included, and with the CPU's.

    The CPU's noise may differ in the last bit of a logarithm, so its picks decide nothing there.
    """
    generator = torch.Generator().manual_seed(case)
    logits = torch.randn(24, 5003, generator=generator).mul(3).round()  # nearly all are ties
    temperature = torch.tensor([0.0, 0.7, 1.0, 0.3] * 6, dtype=torch.float64)
    top_k = torch.tensor([0, 0, 40] * 8)
    top_p = torch.tensor([1.0, 0.9] * 12, dtype=torch.float64)
    streams = torch.randint(2**62, (24,), generator=generator)
    rule = PickRows(temperature, top_k, top_p, torch.zeros_like(top_p), streams)
    positions = torch.arange(24)
    noise = make_ops().paged.noise
    there = [one.to(DEVICE) for one in (logits, positions, *rule)]

    def picked(rows: slice, draw: Draw) -> torch.Tensor:
        scores, places, *numbers = (one[rows] for one in there)
        picks = pick_columns(scores, PickRows(*numbers), places, draw, None, noise)
        return picks.columns.cpu()

    together = picked(slice(24), Draw.FILTERS)
    alone = torch.cat([picked(slice(i, i + 1), Draw.FILTERS) for i in range(24)])
    greedy = temperature == 0
    plain = ~greedy & (top_k == 0) & (top_p == 1)
    found = {
        "alone": torch.equal(together, alone),
        "greedy": torch.equal(picked(slice(24), Draw.GREEDY)[greedy], together[greedy]),
        "noise": torch.equal(picked(slice(24), Draw.NOISE)[plain], together[plain]),
        "first of ties": torch.equal(together[greedy], logits.argmax(1)[greedy]),
    }
    on_host = pick_columns(logits, rule, positions, Draw.FILTERS).columns
    say(f"picks: {found}; {int((on_host != together).sum())} of 24 differ from the CPU's")
    return all(found.values())


def check_rounds(case: int) -> bool:
    """Compare answers of rounds that graphs replay with answers of rounds that are called."""
    shape, kind = REHEARSED[case] if DEVICE.type == "cpu" else ROUNDS[case]
    backbone = random_backbone(shape, kind)
    drafter = RecursiveDrafter(make_stand_in_head(backbone))
    answers = []
    problem: str | None = None
    for is_replayed in (True, False):
        limits = EngineLimits(max_running=4, rows_per_step=36, honour_k=True)
        engine = Engine.for_model(backbone, drafter, limits)
        if not isinstance(engine.runner, DeviceRunner):
            raise TypeError(f"no whole rounds: {engine.backend}")
        replay = engine.runner.rounds.replay
        replay.captures &= is_replayed
        running = [engine.submit(one) for one in _requests(shape.vocabulary)]
        while any(one.finish_reason is None for one in running):
            engine.step()
        answers.append([[emitted.pick.token_id for emitted in one.take()] for one in running])
        problem = problem or replay.problem
        say(f"rounds {shape.name} {kind}: {replay.num_prepared} captured; {engine.backend}")
    wrong = sum(one != other for one, other in zip(*answers, strict=True))
    say(f"rounds {shape.name} {kind}: {wrong} of {len(answers[0])} answers differ; {problem}")
    return problem is None and not wrong and all(answers[0])


def _requests(vocabulary: int) -> list[Request]:
    """Return requests of every way to pick and to draft."""
    rng = np.random.default_rng(0)
    ways: list[tuple[MtpMode, SamplingParams]] = [
        ("off", SamplingParams()),
        (4, SamplingParams()),
        (2, SamplingParams(temperature=0.8, seed=1)),
        (8, SamplingParams(temperature=1.0, top_p=0.9, top_k=40, seed=2)),
        ("auto", SamplingParams(temperature=0.7, seed=3)),
        (3, SamplingParams(logprobs=1)),
    ]
    num_rows, num_tokens = (4, 4) if DEVICE.type == "cpu" else (30, 48)
    stopping = StopParams(num_tokens, ignore_eos=True)
    prompts = [tuple(rng.integers(0, vocabulary, num_rows + i).tolist()) for i in range(len(ways))]
    return [Request(ids, how, stopping, mtp) for ids, (mtp, how) in zip(prompts, ways, strict=True)]


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
