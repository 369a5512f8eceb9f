"""Where a round's microseconds go, per kernel.

In:  a runner and a draft. Out: kernels by the time they take. Kernels that overlap count twice
where they wait for each other, so rounds are also profiled with launches one after the other.
"""

from collections import defaultdict
from typing import Any

import torch
from cuda_report import say
from cuda_rounds import Lengths, Subject, random_backbone, runner_of
from cuda_shapes import LARGE, Shape

from headlong.bench import round_cost
from headlong.decode.device.runner import DeviceRunner
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import NO_DRAFT, Draft
from headlong.models.transformer import Backbone
from headlong.ops.cuda import triton_launch
from headlong.ops.cuda.graph_replay import Fetched

REPEATS = 20


def profile_small(subject: Subject) -> dict[str, Any]:
    """Profile rounds of the small model: plain, and with a draft of four."""
    backbone, drafter = subject.pair
    found = {}
    for name, depth in (("plain", 0), ("4 drafted", 4)):
        for overlaps in (True, False):
            _overlap(backbone, overlaps=overlaps)
            runner = runner_of(backbone, drafter)
            found[f"{name}, {_how(overlaps)}"] = profile(runner, depth, subject.lengths)
    _overlap(backbone, overlaps=True)
    return found


def profile_large(lengths: Lengths, shape: Shape = LARGE) -> dict[str, Any]:
    """Profile plain rounds of the large shape."""
    found = {}
    for kind in ("bf16", "q4"):
        backbone = random_backbone(shape, kind)
        _overlap(backbone, overlaps=False)
        found[f"{kind}, {_how(False)}"] = profile(runner_of(backbone, None), 0, lengths)
    return found


def profile(runner: DeviceRunner, depth: int, lengths: Lengths) -> dict[str, Any]:
    """Return the microseconds of a round's kernels, and how many there are, the dearest first."""
    sequence, _ = round_cost.begun(runner, 0.0, lengths.context)
    sequence.plan = DraftPlan(depth)
    given = NO_DRAFT if depth else Draft((), (), ())
    begin = round_cost.repeated(runner, sequence, given)
    took = round_cost.timed_ms(begin, REPEATS)
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CUDA] if torch.cuda.is_available() else [activity.CPU]
    with torch.profiler.profile(activities=kinds) as seen:
        for _ in range(REPEATS - 1):
            begin()
        Fetched(begin().numbers).read()
    microseconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for event in seen.events():
        if torch.cuda.is_available() and event.device_type != torch.autograd.DeviceType.CUDA:
            continue  # calls to the driver
        microseconds[event.name[:90]] += event.time_range.elapsed_us() / REPEATS
        counts[event.name[:90]] += 1
    dearest = sorted(microseconds, key=lambda name: -microseconds[name])
    say(f"  depth {depth}: {took:.3f} ms a round, kernels {sum(microseconds.values()):.0f} µs")
    for name in dearest[:12]:
        say(f"    {microseconds[name]:8.1f} µs {counts[name] / REPEATS:6.1f} × {name[:60]}")
    kernels = {one: (round(microseconds[one], 2), counts[one] / REPEATS) for one in dearest[:60]}
    return {"ms": took, "kernels (µs, number)": kernels}


def _overlap(backbone: Backbone, *, overlaps: bool) -> None:
    """Let launches overlap, where the card can do that, or not."""
    ops: Any = backbone.ops
    ops.paged.overlaps = overlaps and triton_launch.can_overlap(ops.device)


def _how(overlaps: bool) -> str:
    return "overlapped" if overlaps else "one after the other"
