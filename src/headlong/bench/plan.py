"""The plan: how many workers an agent workload needs, what they cost, how long a task takes.

In:  a workload (tasks an hour, steps, tokens, tool time) and one worker's rates.
Out: `Capacity`, exact arithmetic and nothing else. A step reads its context and writes its answer;
what earlier steps have read is found in the prefix cache, as far as `reuse` says, and a tool's
result comes on top. A worker answers one request after the other at the measured rates; while a
task waits for a tool, its worker serves others, unless it is held.
"""

import math
from dataclasses import dataclass
from typing import Any

from headlong.errors import RequestError

SECONDS_PER_HOUR = 3600

_ROUNDING = 1e-9
"""What the last digits of floats may add before a worker more is really needed."""


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
        _require(self.steps >= 1, "steps", self.steps, "1 or more")
        _require(self.prompt_tokens >= 1, "prompt_tokens", self.prompt_tokens, "1 or more")
        _require(self.new_tokens >= 1, "new_tokens", self.new_tokens, "1 or more")
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
        for name, value in (
            ("prefill_tokens_per_second", self.read_tokens_per_second),
            ("tokens_per_second", self.write_tokens_per_second),
        ):
            is_sound = value > 0 and math.isfinite(value)
            _require(is_sound, name, value, "a number above 0")


@dataclass(frozen=True, slots=True)
class Capacity:
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
    in_flight: float
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
        return {
            "workers": self.workers,
            "busy_share": self.busy_share,
            "tasks_in_flight": self.in_flight,
            "task_s": self.task_s,
            "model_s": self.model_s,
            "read_s": self.read_s,
            "write_s": self.write_s,
            "tool_s": self.tool_s,
            "cost_per_hour": self.cost_per_hour,
            "cost_per_task": self.cost_per_task,
        }


def plan_capacity(
    workload: Workload, rates: Rates, worker_cost_per_hour: float | None = None
) -> Capacity:
    """Compute the workers a workload needs, rounded up, and what they cost."""
    if worker_cost_per_hour is not None:
        is_price = worker_cost_per_hour >= 0 and math.isfinite(worker_cost_per_hour)
        _require(is_price, "cost_per_hour", worker_cost_per_hour, "0 or more")
    read_s = workload.read_tokens / rates.read_tokens_per_second
    write_s = workload.written_tokens / rates.write_tokens_per_second
    tool_s = (workload.steps - 1) * workload.tool_s
    held_s = read_s + write_s + (tool_s if workload.holds_worker else 0.0)
    # So many workers would be busy all the time.
    load = workload.tasks_per_hour * held_s / SECONDS_PER_HOUR
    workers = max(1, math.ceil(load / workload.utilisation - _ROUNDING))
    cost = None if worker_cost_per_hour is None else workers * worker_cost_per_hour
    return Capacity(
        read_s=read_s,
        write_s=write_s,
        tool_s=tool_s,
        workers=workers,
        busy_share=load / workers,
        in_flight=workload.tasks_per_hour * (read_s + write_s + tool_s) / SECONDS_PER_HOUR,
        cost_per_hour=cost,
        cost_per_task=None if cost is None else cost / workload.tasks_per_hour,
    )


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value}.", f"It must be {allowed}.")
