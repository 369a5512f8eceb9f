"""Capacity: how many workers an agent workload needs, what they cost, how long a task takes.

In:  a workload, and one worker's rates: measured here, read from a results file, or given.
Out: `CapacityPlan`, exact arithmetic and nothing else. A step reads its context and writes its
answer; what earlier steps have read is found in the prefix cache, as far as `reuse` says. A worker
answers one request after the other; while a task waits for a tool, its worker serves others,
unless it is held.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from headlong.bench.figures import Block, describe_side, pair_rows
from headlong.bench.local_side import LocalSide
from headlong.bench.measure import STOPPED_BY_USER, QuestionPlan, Run, run_ab
from headlong.bench.prompt_sets import BenchPrompt, read_prompt_set
from headlong.bench.rows import make_row, read_row
from headlong.bench.summary import load_results
from headlong.config import MtpMode
from headlong.errors import RequestError
from headlong.llm import LLM

SECONDS_PER_HOUR = 3600

_ROUNDING = 1e-9
"""What the last digits of floats may add before a worker more is really needed."""

MEASURED_TOKENS = 96
"""Tokens of each measured answer."""

READ_TOKENS = 512
"""Tokens of a prompt whose reading is timed."""

TIME_BUDGET_S = 20.0
_MIN_READ = 8
"""Prompt tokens below which the time to the first token says little about prefill speed."""

_READ_REPEATS = 3
_MEASURE_AGAIN = "Measure with `headlong bench`, or give the rates as numbers."


@dataclass(frozen=True, slots=True)
class Workload:
    """What an agent does, and how often."""

    tasks_per_hour: float
    steps: int = 1
    """Calls of the model in one task."""
    prompt_tokens: int = 1000
    """Context of the first step: instructions, tools, the task."""
    new_tokens: int = 200
    """What the model writes in every step."""
    tool_tokens: int = 0
    """What a tool's result adds to the context after every step but the last."""
    tool_s: float = 0.0
    """How long a tool runs after every step but the last."""
    reuse: float = 0.9
    """Share of the context already seen that later steps find in the prefix cache."""
    utilisation: float = 0.7
    """Share of its time a worker shall be busy; the rest is room for bursts."""
    holds_worker: bool = False
    """Whether a task keeps its worker while a tool runs."""

    def __post_init__(self) -> None:
        is_rate = 0 < self.tasks_per_hour < math.inf
        _require(is_rate, "tasks_per_hour", self.tasks_per_hour, "a number above 0")
        for name in ("steps", "prompt_tokens", "new_tokens"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        _require(self.tool_tokens >= 0, "tool_tokens", self.tool_tokens, "0 or more")
        _require(0 <= self.tool_s < math.inf, "tool_seconds", self.tool_s, "0 or more")
        _require(0 <= self.reuse <= 1, "reuse", self.reuse, "from 0 to 1")
        is_share = 0 < self.utilisation <= 1
        _require(is_share, "utilisation", self.utilisation, "above 0 and at most 1")

    @property
    def last_context(self) -> int:
        """Tokens of prompt and answer at the end of the last step, the most a task ever has."""
        grown = (self.steps - 1) * (self.new_tokens + self.tool_tokens)
        return self.prompt_tokens + grown + self.new_tokens

    @property
    def read_tokens(self) -> float:
        """Prompt tokens that all steps of a task really run through the model."""
        total = float(self.prompt_tokens)
        seen = self.prompt_tokens + self.new_tokens
        for _ in range(1, self.steps):
            total += self.tool_tokens + (1 - self.reuse) * seen
            seen += self.tool_tokens + self.new_tokens
        return total

    @property
    def written_tokens(self) -> int:
        """Tokens that all steps of a task write."""
        return self.steps * self.new_tokens


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast one worker is."""

    read_tokens_per_second: float
    write_tokens_per_second: float

    def __post_init__(self) -> None:
        reading, writing = self.read_tokens_per_second, self.write_tokens_per_second
        for name, value in (("prefill_tokens_per_second", reading), ("tokens_per_second", writing)):
            _require(0 < value < math.inf, name, value, "a number above 0")


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What a workload takes at some rates."""

    read_s: float
    """Per task, in prompts."""
    write_s: float
    """Per task, in answers."""
    tool_s: float
    """Per task, in tools."""
    workers: int
    busy_share: float
    """Share of their time that so many workers are really busy."""
    tasks_in_flight: float
    """Tasks under way at once, on average."""
    cost_per_hour: float | None
    cost_per_task: float | None

    @property
    def model_s(self) -> float:
        """Seconds of a task in the model."""
        return self.read_s + self.write_s

    @property
    def task_s(self) -> float:
        """Seconds from the beginning of a task to its end, where it never waits for a worker."""
        return self.model_s + self.tool_s

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self) | {"task_s": self.task_s, "model_s": self.model_s}


def plan_capacity(
    workload: Workload, rates: Rates, worker_cost_per_hour: float | None = None
) -> CapacityPlan:
    """Compute the workers a workload needs, rounded up, and what they cost."""
    if worker_cost_per_hour is not None:
        is_price = 0 <= worker_cost_per_hour < math.inf
        _require(is_price, "cost_per_hour", worker_cost_per_hour, "0 or more")
    read_s = workload.read_tokens / rates.read_tokens_per_second
    write_s = workload.written_tokens / rates.write_tokens_per_second
    tool_s = (workload.steps - 1) * workload.tool_s
    held_s = read_s + write_s + (tool_s if workload.holds_worker else 0.0)
    # So many workers would be busy all the time.
    load = workload.tasks_per_hour * held_s / SECONDS_PER_HOUR
    workers = max(1, math.ceil(load / workload.utilisation - _ROUNDING))
    cost = None if worker_cost_per_hour is None else workers * worker_cost_per_hour
    return CapacityPlan(
        read_s=read_s,
        write_s=write_s,
        tool_s=tool_s,
        workers=workers,
        busy_share=load / workers,
        tasks_in_flight=workload.tasks_per_hour * (read_s + write_s + tool_s) / SECONDS_PER_HOUR,
        cost_per_hour=cost,
        cost_per_task=None if cost is None else cost / workload.tasks_per_hour,
    )


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value}.", f"It must be {allowed}.")


@dataclass(frozen=True, slots=True)
class SpeedPair:
    """One worker's rates, without MTP and with it."""

    plain: Rates
    mtp: Rates | None
    """None when only one side is known."""
    source: str
    """Where the numbers come from, for people."""

    @property
    def speedup(self) -> float | None:
        """How much sooner answers are written with MTP."""
        if self.mtp is None:
            return None
        return self.mtp.write_tokens_per_second / self.plain.write_tokens_per_second


def give_rates(
    tokens_per_second: float, prefill_tokens_per_second: float, speedup: float | None
) -> SpeedPair:
    """Take rates as given; MTP is taken to leave the reading of prompts as it is."""
    plain = Rates(prefill_tokens_per_second, tokens_per_second)
    if speedup is None:
        return SpeedPair(plain, None, "given")
    if not speedup > 0:
        raise RequestError(f"speedup is {speedup}.", "It must be above 0; 1 means no gain.")
    return SpeedPair(plain, Rates(prefill_tokens_per_second, tokens_per_second * speedup), "given")


def read_rates(path: Path) -> SpeedPair:
    """Read the rates that a `headlong bench` run has measured."""
    document = load_results(path)
    names = [side["name"] for side in document["sides"]]
    rows = [read_row(record, str(path)) for record in document["runs"]]
    blocks = pair_rows(rows, names)
    if not blocks:
        problem = f"{path} holds no question that all sides have answered."
        raise RequestError(problem, _MEASURE_AGAIN)
    candidate = str(document.get("candidate", ""))
    return SpeedPair(
        plain=_rates_of(blocks, names[0], path),
        mtp=_rates_of(blocks, candidate, path) if candidate in names[1:] else None,
        source=f"{path.name}, {candidate or 'one side'}, questions: {len(blocks)}",
    )


def measure_rates(llm: LLM, on_run: Callable[[Run], None] = lambda run: None) -> SpeedPair:
    """Measure one worker in this process: one prompt of every built-in task, both ways in turn."""
    prompts = one_of_each_task()
    plan = QuestionPlan(
        prompts, temperatures=(0.0,), max_tokens=MEASURED_TOKENS, time_budget_s=TIME_BUDGET_S
    )
    measured = run_ab([LocalSide(llm, "off"), LocalSide(llm, "auto")], plan, on_run)
    if measured.stopped == STOPPED_BY_USER:
        raise KeyboardInterrupt  # there is no plan from half a measurement
    blocks = pair_rows([make_row(run) for run in measured.runs], ["off", "auto"])
    if not blocks:
        failed = next((run.error for run in measured.runs if run.error), measured.stopped)
        raise RequestError(f"Nothing could be measured: {failed}.", _MEASURE_AGAIN)
    modes: tuple[MtpMode, ...] = ("off", "auto")
    plain, mtp = (Rates(_reading_rate(llm, m), _writing_rate(blocks, str(m))) for m in modes)
    source = f"measured here, both ways in turn, greedy, prompts: {len(blocks)}"
    return SpeedPair(plain, mtp, source)


def one_of_each_task() -> list[BenchPrompt]:
    """Return the first built-in prompt of every task."""
    first: dict[str, BenchPrompt] = {}
    for prompt in read_prompt_set([], lambda: "").prompts:
        first.setdefault(prompt.task, prompt)
    return list(first.values())


def _reading_rate(llm: LLM, mode: MtpMode) -> float:
    """Time prompts that are new to the engine, so that no kept prefix helps."""
    rng = np.random.default_rng(1 if mode == "off" else 2)
    config = llm.backbone.config
    num_tokens = min(READ_TOKENS, config.context_length // 2)
    seconds: list[float] = []
    for _ in range(_READ_REPEATS):
        ids = rng.integers(0, config.vocab_size, num_tokens).tolist()
        timings = llm.generate(ids, mtp=mode, max_tokens=1, temperature=0.0).timings
        seconds.append(timings.prefill_s + timings.prefill_head_s)
    return num_tokens / median(seconds)


def _rates_of(blocks: Sequence[Block], side: str, path: Path) -> Rates:
    rows = [block[side] for block in blocks]
    if not any(row.num_prompt_tokens and row.ttft_s > 0 for row in rows):
        raise RequestError(f"{path} does not tell how long prompts of {side} were.", _MEASURE_AGAIN)
    read = [
        ((row.num_prompt_tokens or 0) - (row.num_cached_tokens or 0), row.ttft_s) for row in rows
    ]
    read = [(num_tokens, seconds) for num_tokens, seconds in read if num_tokens >= _MIN_READ]
    if not read:
        raise RequestError(
            f"In {path} nearly all of the prompts of {side} came from a cache, so how fast prompts "
            "are read is not known.",
            _MEASURE_AGAIN,
        )
    reading = sum(num_tokens for num_tokens, _ in read) / sum(seconds for _, seconds in read)
    return Rates(reading, _writing_rate(blocks, side))


def _writing_rate(blocks: Sequence[Block], side: str) -> float:
    figures = describe_side([block[side] for block in blocks])
    rate = figures["decode_tokens_per_second"] or figures["tokens_per_second"]
    return float(rate)
