"""A plan on the terminal: the two ways side by side, then the same in plain words.

In:  what was asked and computed. Out: a table, sentences, and a dictionary for JSON.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headlong.bench.capacity import CapacityPlan, Rates, SpeedPair, Workload
from headlong.bench.memory import MemoryNeed
from headlong.cli.output import format_bytes, printable

_ROWS = (
    ("writes, tokens/s", "tokens_per_second", "{:,.1f}"),
    ("reads, tokens/s", "prefill_tokens_per_second", "{:,.0f}"),
    ("a task, seconds", "task_s", "{:,.1f}"),
    ("  reading prompts", "read_s", "{:,.1f}"),
    ("  writing answers", "write_s", "{:,.1f}"),
    ("  in tools", "tool_s", "{:,.1f}"),
    ("tasks under way", "tasks_in_flight", "{:,.1f}"),
    ("workers", "workers", "{}"),
    ("  busy", "busy_share", "{:.0%}"),
    ("cost an hour", "cost_per_hour", "{:,.2f}"),
    ("cost a task", "cost_per_task", "{:.5f}"),
    ("cores", "cores", "{}"),
)
"""Lines of the table: label, field of the JSON document, format."""


@dataclass(frozen=True, slots=True)
class PlanView:
    """Everything a plan says."""

    workload: Workload
    speeds: SpeedPair
    plain: CapacityPlan
    mtp: CapacityPlan | None
    memory: MemoryNeed | None
    context: int
    concurrency: int
    worker_cores: int | None

    def print(self, console: Console) -> None:
        """Print the table and the sentences."""
        console.print(_describe_workload(self.workload), soft_wrap=True)
        console.print(f"One worker: {printable(self.speeds.source)}.", style="dim", soft_wrap=True)
        console.print(self._make_table())
        if self.memory is not None:
            console.print(self._make_memory_table(self.memory))
        for sentence in self.sentences():
            console.print(sentence, soft_wrap=True)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "workload": asdict(self.workload)
            | {
                "read_tokens_per_task": self.workload.read_tokens,
                "written_tokens_per_task": self.workload.written_tokens,
                "last_context": self.workload.last_context,
            },
            "speed_source": self.speeds.source,
            "speedup": self.speeds.speedup,
            "plain": _side(self.plain, self.speeds.plain, self.worker_cores),
            "mtp": _side(self.mtp, self.speeds.mtp, self.worker_cores),
            "memory": None
            if self.memory is None
            else self.memory.to_dict() | {"context": self.context, "concurrency": self.concurrency},
            "words": list(self.sentences()),
        }

    def sentences(self) -> Iterator[str]:
        """Say the plan in plain words."""
        plain, mtp, rate = self.plain, self.mtp, f"{self.workload.tasks_per_hour:g} tasks an hour"
        if mtp is None:
            yield f"{rate} need {_workers(plain.workers)}; a task takes {_seconds(plain.task_s)}."
        else:
            yield (
                f"{rate} need {_workers(plain.workers)} without MTP and {_workers(mtp.workers)} "
                f"with it; a task takes {_seconds(plain.task_s)} or {_seconds(mtp.task_s)}."
            )
            yield self._say_gain(mtp)
        if self.memory is not None:
            yield self._say_memory(self.memory)
            if hint := self._say_reuse(self.memory):
                yield hint

    def _say_gain(self, mtp: CapacityPlan) -> str:
        plain, speedup = self.plain, self.speeds.speedup or 1.0
        if speedup < 1:
            return f"MTP writes slower here ({speedup:.2f} ×): leave it off."
        share = plain.write_s / plain.task_s
        text = (
            f"Writing is {share:.0%} of a task's time; MTP makes it {speedup:.2f} × as fast, the "
            f"whole task {plain.task_s / mtp.task_s:.2f} ×"
        )
        if plain.cost_per_hour is None or mtp.cost_per_hour is None:
            return f"{text}."
        saved = plain.cost_per_hour - mtp.cost_per_hour
        if saved > 0:
            return f"{text}, and saves {saved:.2f} an hour, {saved / plain.cost_per_hour:.0%}."
        return f"{text}; the number of workers and their cost stay the same."

    def _say_memory(self, memory: MemoryNeed) -> str:
        held = f"{self.concurrency} context{'s' if self.concurrency > 1 else ''}"
        extra = memory.mtp_bytes - memory.plain_bytes
        text = f"One worker with {held} of {self.context:,} tokens takes "
        if not extra:
            return f"{text}{format_bytes(memory.plain_bytes)}."
        return (
            f"{text}{format_bytes(memory.mtp_bytes)}, of which the head and its keys and values "
            f"are {format_bytes(extra)}."
        )

    def _say_reuse(self, memory: MemoryNeed) -> str | None:
        """Say when contexts are too large to be kept, so that the planned reuse is out of reach."""
        held = memory.kv_bytes + memory.head_kv_bytes + memory.state_bytes
        if self.workload.steps == 1 or not self.workload.reuse or held <= memory.prefix_bytes:
            return None
        return (
            f"To find {self.workload.reuse:.0%} of a context again after a tool has run, keep at "
            f"least {format_bytes(held)} of prefixes; planned are "
            f"{format_bytes(memory.prefix_bytes)}."
        )

    def _make_table(self) -> Table:
        """Both ways side by side, from the numbers of the JSON document."""
        document = self.to_dict()
        sides = {"without MTP": document["plain"], "with MTP": document["mtp"]}
        shown = {name: side for name, side in sides.items() if side is not None}
        table = Table(box=SIMPLE_HEAD, title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("")
        for name in shown:
            table.add_column(name, justify="right")
        for label, field, form in _ROWS:
            values = [side[field] for side in shown.values()]
            if None not in values:
                table.add_row(label, *(form.format(value) for value in values))
        return table

    def _make_memory_table(self, memory: MemoryNeed) -> Table:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("memory of one worker")
        table.add_column("", justify="right")
        for label, num_bytes in (
            ("weights, as packed", memory.weights_bytes),
            ("head", memory.head_bytes),
            (f"keys and values, {self.concurrency} × {self.context:,} tokens", memory.kv_bytes),
            ("the head's keys and values", memory.head_kv_bytes),
            *([("recurrent states", memory.state_bytes)] if memory.state_bytes else []),
            ("kept prefixes, at most", memory.prefix_bytes),
            ("Python and libraries", memory.process_bytes),
            ("together", memory.mtp_bytes),
        ):
            table.add_row(label, format_bytes(num_bytes))
        return table


def _side(
    capacity: CapacityPlan | None, rates: Rates | None, worker_cores: int | None
) -> dict[str, Any] | None:
    if capacity is None or rates is None:
        return None
    return {
        **capacity.to_dict(),
        "tokens_per_second": rates.write_tokens_per_second,
        "prefill_tokens_per_second": rates.read_tokens_per_second,
        "cores": None if worker_cores is None else capacity.workers * worker_cores,
    }


def _describe_workload(workload: Workload) -> str:
    steps = "1 step" if workload.steps == 1 else f"{workload.steps} steps"
    tools = f", tools {workload.tool_s:g} s and {workload.tool_tokens:,} tokens" * (
        workload.steps > 1
    )
    return (
        f"{workload.tasks_per_hour:g} tasks an hour, {steps} each: prompt "
        f"{workload.prompt_tokens:,} tokens, answer {workload.new_tokens:,}{tools}; "
        f"{workload.reuse:.0%} of the known context is reused, workers shall be "
        f"{workload.utilisation:.0%} busy."
    )


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number:,} workers"


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
