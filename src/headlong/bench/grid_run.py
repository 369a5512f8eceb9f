"""Measuring a grid: cell after cell, as long as time lasts; what is known is not measured again.

In:  cells in order, their prompts, whoever makes sides for a cell, results of earlier runs.
Out: one flat record per cell. Inside a cell plain decoding and the cell's own setting answer every
prompt in turn, by `ab.py`, so a machine that gets busier does it to both.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headlong.bench.ab import STOPPED_BY_USER, Plan, run_ab
from headlong.bench.figures import Group, describe_group, pair_rows
from headlong.bench.grid_cells import Cell
from headlong.bench.identity import find_divergence
from headlong.bench.measure import Measured, Side
from headlong.bench.prompt_sets import BenchPrompt, hash_all
from headlong.bench.rows import make_row
from headlong.errors import HeadlongError

Record: TypeAlias = dict[str, Any]
"""A measured cell: its levels, its figures, its key; flat, for JSON and CSV."""

FIGURES = (
    "speedup", "low", "high", "num_prompts", "decode_speedup", "plain_tokens_per_second",
    "tokens_per_second", "acceptance_length", "acceptance_rate", "num_drafted", "num_accepted",
    "num_identical", "num_compared", "divergence", "error", "seconds", "commit", "key",
)  # fmt: skip
"""The fields of a record besides its levels."""


class SideMaker(Protocol):
    """Whoever makes the sides of a cell."""

    def sides(self, cell: Cell) -> tuple[Side, Side]:
        """Return plain decoding, and what the cell compares with it."""


@dataclass(frozen=True, slots=True)
class GridPlan:
    """What to measure, and how long."""

    cells: Sequence[Cell]
    """The most informative first."""
    prompts: Mapping[str, Sequence[BenchPrompt]]
    """By task; every cell of a task asks the same."""
    max_tokens: int
    seed: int = 0
    time_budget_s: float | None = None
    place: str = ""
    """What else must be the same for an earlier result to count: model, backend, processor."""
    commit: str | None = None

    def key(self, cell: Cell) -> str:
        """Return what an earlier result must have been measured with to stand for this cell."""
        prompts = hash_all(prompt.hash for prompt in self.prompts[cell.task])
        asked = [cell.to_dict(), prompts, self.max_tokens, self.seed, self.place]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class GridMeasured:
    """The records of a run, and what kept it from being whole."""

    records: Sequence[Record]
    stopped: str | None = None


def run_grid(
    maker: SideMaker,
    plan: GridPlan,
    known: Mapping[str, Record],
    on_cell: Callable[[Cell, Record], None] = lambda cell, record: None,
) -> GridMeasured:
    """Measure all cells that `known`, by key, does not have; `on_cell` hears of each new one."""
    began_s = time.monotonic()
    records: list[Record] = []
    stopped = None
    num_measured = 0
    for cell in plan.cells:
        key = plan.key(cell)
        if key in known:
            records.append(known[key])
            continue
        is_over = plan.time_budget_s is not None and num_measured > 0
        if stopped or (is_over and time.monotonic() - began_s >= (plan.time_budget_s or 0)):
            stopped = stopped or f"the time budget of {plan.time_budget_s:g} s was used up"
            continue  # later cells may be known from before
        try:
            record = _measure_cell(maker, plan, cell)
            records.append(record)
            num_measured += 1
            on_cell(cell, record)
        except KeyboardInterrupt:
            stopped = STOPPED_BY_USER
    return GridMeasured(records, stopped)


def _measure_cell(maker: SideMaker, plan: GridPlan, cell: Cell) -> Record:
    """Measure one cell."""
    began_s = time.monotonic()
    asked = Plan(plan.prompts[cell.task], (cell.temperature,), plan.max_tokens, seed=plan.seed)
    try:
        sides = maker.sides(cell)
        measured = run_ab(sides, asked)
        if measured.stopped == STOPPED_BY_USER:
            raise KeyboardInterrupt  # half a cell is none
        figures = _read_figures(cell, sides, measured)
    except HeadlongError as error:  # one setting that cannot be had; the others may
        figures = {"error": str(error)}
    record = cell.to_dict() | dict.fromkeys(FIGURES) | figures
    return record | {
        "seconds": time.monotonic() - began_s,
        "commit": plan.commit,
        "key": plan.key(cell),
    }


def _read_figures(cell: Cell, sides: tuple[Side, Side], measured: Measured) -> Record:
    """Reduce the runs of a cell to its figures."""
    names = [side.name for side in sides]
    errors = [run.error for run in measured.runs if run.error is not None]
    blocks = pair_rows([make_row(run) for run in measured.runs], names)
    if errors or not blocks:
        return {"error": errors[0] if errors else "No prompt was answered by both sides."}
    group = describe_group(Group(cell.task, cell.temperature, blocks), names)
    plain, own = (group["sides"][name] for name in names)
    speedup = group["speedups"][names[1]]
    accepted = own["acceptance"] or {}
    divergence = find_divergence(measured.runs, names[0])
    drafts = ("acceptance_length", "acceptance_rate", "num_drafted", "num_accepted")
    return {
        "speedup": speedup["value"],
        "low": speedup["low"],
        "high": speedup["high"],
        "num_prompts": speedup["num_prompts"],
        "decode_speedup": speedup["decode"]["value"],
        "plain_tokens_per_second": plain["tokens_per_second"],
        "tokens_per_second": own["tokens_per_second"],
        **{name: accepted.get(name) for name in drafts},
        "num_identical": speedup["num_identical"],
        "num_compared": speedup["num_compared"],
        "divergence": None if divergence is None else divergence.words,
    }
