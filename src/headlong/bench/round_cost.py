"""The cost of a round on backends that run whole rounds on the device: their `pass_cost`.

In:  a runner, row counts and a context length. Out: `RoundCost`: medians in milliseconds.
A round is timed from its start until its results are on the host, and again in a queue of rounds,
so that the device never waits. The difference is the overhead of the host.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from headlong.bench.pass_cost import DRAFT_LENGTH, PassPlan
from headlong.config import MAX_DRAFT_TOKENS, SamplingParams, StopParams
from headlong.decode.device.round import RoundResults
from headlong.decode.device.runner import DeviceRunner
from headlong.decode.prefill import PromptChunk
from headlong.decode.request import Request
from headlong.decode.sequence import DecodingSequence
from headlong.drafters.draft_plan import DraftPlan
from headlong.drafters.drafter import NGRAM, NO_DRAFT, Draft
from headlong.errors import RequestError
from headlong.models.traffic import pass_bytes
from headlong.ops.cuda.graph_replay import Fetched
from headlong.ops.cuda.ops import CudaOps

IN_A_ROW = 20
"""Rounds that are started before waiting for the last of them."""


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Medians of one run; times in milliseconds."""

    bandwidth_gb_s: float
    """Of a copy on the device, bytes read and written."""
    bytes_per_pass: int
    rows: dict[int, float]
    """Of a whole round of one stream over so many rows, picks included, until the host has it."""
    rows_in_a_row: dict[int, float]
    """The same where others are in front of it."""
    draft_step_ms: float | None
    """On average, the row that is observed first included; None without a head."""
    pick_ms: float
    """What a sampled pick takes longer than a greedy one."""
    prefill_tokens_per_s: float

    @property
    def bandwidth_share(self) -> float:
        """The share of the measured bandwidth that a round over one row reaches."""
        seconds = self.rows_in_a_row[min(self.rows)] / 1e3
        return self.bytes_per_pass / seconds / 1e9 / self.bandwidth_gb_s

    @property
    def host_share(self) -> float:
        """The share of a round over one row that the device waits where the host must decide."""
        fewest = min(self.rows)
        return max(0.0, 1 - self.rows_in_a_row[fewest] / self.rows[fewest])

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers under the names of the JSON line."""
        shares = {"bandwidth_share": self.bandwidth_share, "host_share": self.host_share}
        return asdict(self) | shares


def measure_rounds(runner: DeviceRunner, plan: PassPlan) -> RoundCost:
    """Measure what rounds of one stream cost."""
    most = max(plan.row_counts)
    if most > MAX_DRAFT_TOKENS + 1:
        raise RequestError(
            f"{most} rows cannot be measured on {runner.backend}: a round of one stream has at "
            f"most {MAX_DRAFT_TOKENS + 1}.",
            "Give smaller numbers with --rows.",
        )
    greedy, sampled = (begun(runner, temperature, plan.context)[0] for temperature in (0.0, 0.8))
    greedy.plan = DraftPlan(DRAFT_LENGTH)
    fewest = min(plan.row_counts)
    rounds = [repeated(runner, greedy, _given(count - 1)) for count in plan.row_counts]
    rounds.append(repeated(runner, sampled, _given(fewest - 1)))
    if runner.drafters.head is not None:
        rounds += [repeated(runner, greedy, one) for one in (NO_DRAFT, _given(DRAFT_LENGTH))]
    found = _milliseconds(rounds, plan.num_rounds)
    times = dict(zip(plan.row_counts, found, strict=False))
    picked, *drafts = (together for _, together in found[len(times) :])
    step_ms = (drafts[0] - drafts[1]) / DRAFT_LENGTH if drafts else None
    prefills = [_prefill_s(runner, plan.prefill) for _ in range(max(2, plan.num_rounds // 6))]
    return RoundCost(
        bandwidth_gb_s=_copy_gb_per_s(runner),
        bytes_per_pass=pass_bytes(runner.backbone),
        rows={count: alone for count, (alone, _) in times.items()},
        rows_in_a_row={count: together for count, (_, together) in times.items()},
        draft_step_ms=step_ms,
        pick_ms=picked - times[fewest][1],
        prefill_tokens_per_s=plan.prefill / statistics.median(prefills[1:]),
    )


def begun(
    runner: DeviceRunner, temperature: float, num_rows: int
) -> tuple[DecodingSequence, float]:
    """Return a sequence whose prompt of random tokens is through, and the seconds of that."""
    ids = np.random.default_rng(num_rows).integers(0, runner.config.vocab_size, num_rows)
    sampling = SamplingParams(temperature=temperature, seed=num_rows)
    stopping = StopParams(1, ignore_eos=True)
    request = Request(tuple(ids.tolist()), sampling, stopping, cache_salt=uuid4().hex)
    sequence = runner.make_sequence(request)
    runner.begin(sequence, is_idle=False)
    start = time.perf_counter()
    (result,) = runner.prefill([PromptChunk(sequence, num_rows)])
    if result.error is not None:
        raise result.error
    return sequence, time.perf_counter() - start


def _given(num_tokens: int) -> Draft:
    """Return a draft that no head makes."""
    return Draft((0,) * num_tokens, (1.0,) * num_tokens, (NGRAM,) * num_tokens)


def repeated(
    runner: DeviceRunner, sequence: DecodingSequence, given: Draft
) -> Callable[[], RoundResults]:
    """Return what begins a round that is never read, so that it can be made again and again."""
    begin = runner.rounds.rehearsed(sequence, given)
    Fetched(begin().numbers).read()
    return begin


def _milliseconds(
    rounds: Sequence[Callable[[], RoundResults]], repeats: int
) -> list[tuple[float, float]]:
    """Return what each round takes alone, and with others in front of it; all take turns."""
    alone: list[list[float]] = [[] for _ in rounds]
    together: list[list[float]] = [[] for _ in rounds]
    for _ in range(repeats):
        for begin, own, own_together in zip(rounds, alone, together, strict=True):
            own.append(timed_ms(begin, 1))
            own_together.append(timed_ms(begin, IN_A_ROW))
    return [
        (statistics.median(own), statistics.median(own_together))
        for own, own_together in zip(alone, together, strict=True)
    ]


def timed_ms(begin: Callable[[], RoundResults], times: int) -> float:
    """Return the milliseconds of one round of so many, begun behind each other."""
    start = time.perf_counter()
    for _ in range(times - 1):
        begin()
    Fetched(begin().numbers).read()
    return (time.perf_counter() - start) / times * 1e3


def _prefill_s(runner: DeviceRunner, num_rows: int) -> float:
    """Time a prompt; a head observes it at once."""
    sequence, seconds = begun(runner, 0.0, num_rows)
    runner.release(sequence, keeps=False)
    return seconds


def _copy_gb_per_s(runner: DeviceRunner) -> float:
    """Copy on the device and return the bandwidth."""
    ops = runner.backbone.ops
    assert isinstance(ops, CudaOps)
    device = ops.device
    num_bytes = 1 << (30 if device.type == "cuda" else 24)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(6):
        start = time.perf_counter()
        target.copy_(source)
        Fetched(target[:1]).read()
        times.append(time.perf_counter() - start)
    return 2 * num_bytes / statistics.median(times[1:]) / 1e9
