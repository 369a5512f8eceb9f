"""Parts for tests of grids: sides whose speed-ups follow a rule, so that all answers are known."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from bench_parts import ScriptedSide, make_answer, make_prompt
from headlong.bench.grid_cells import Axes, Cell, order_cells
from headlong.bench.grid_run import GridMeasured, GridPlan, run_grid
from headlong.bench.grid_summary import summarise_grid
from headlong.bench.measure import Context, Question, Side, TimedAnswer
from headlong.decode.stats import DecodeStats

TASKS = {"code": 0.5, "chat": 0.2, "stories": -0.1}
KS: dict[Any, float] = {"auto": 0.1, 2: 0.0, 4: -0.1}
AXES = Axes(
    tuple(TASKS),
    temperatures=(0.0, 0.7),
    quants=("q4", "q8"),
    head_quants=("q8", "q4"),
    modes=("auto", "off", 2, 4),
    drafters=("chain", "ngram"),
)


def known_log(cell: Cell) -> float:
    """The logarithm of a cell's speed-up: the task's and K's parts, nothing else."""
    return 0.0 if cell.is_control else TASKS[cell.task] + KS.get(cell.mtp, 0.0)


class ScriptedMaker:
    """Makes sides that take 1 s plain, and as much less as the rule says."""

    def __init__(self, rule: Callable[[Cell], float] = known_log, **changes: Any) -> None:
        self.rule, self.changes = rule, changes
        self.asked: list[Cell] = []

    def sides(self, cell: Cell) -> tuple[Side, Side]:
        """Return both sides of a cell."""
        self.asked.append(cell)
        seconds = math.exp(-self.rule(cell))

        def slow(question: Question) -> TimedAnswer:
            return make_answer(ttft_s=0.1, decode_s=0.9)

        def fast(question: Question) -> TimedAnswer:
            drafts = DecodeStats(10, 30, 15, accepted_at_depth=[8, 5, 2])
            return make_answer(
                ttft_s=0.1 * seconds, decode_s=0.9 * seconds, acceptance=drafts, **self.changes
            )

        return ScriptedSide("off", slow), ScriptedSide(str(cell.mtp) + "'", fast)


def make_plan(cells: Sequence[Cell] | None = None, **changes: Any) -> GridPlan:
    """Return a plan over the small grid, two prompts a task."""
    prompts = {task: [make_prompt(number, task) for number in range(2)] for task in TASKS}
    return GridPlan(order_cells(AXES) if cells is None else cells, prompts, 32, **changes)


def measure(**changes: Any) -> GridMeasured:
    """Measure the whole small grid."""
    return run_grid(ScriptedMaker(**changes), make_plan(), {})


def make_grid_document(measured: GridMeasured, **changes: Any) -> dict[str, Any]:
    """Return the document of a grid."""
    parts: dict[str, Any] = {
        "setup": {"model": "tiny.gguf"},
        "settings": {"max_tokens": 32, "seed": 0},
        "prompts": {"source": "made up", "num": 6, "hash": "0123", "skipped": []},
        "conditions": {"cpu": "some cpu", "num_cores": 2},
        "num_planned": len(order_cells(AXES)),
    }
    return summarise_grid(measured, Context(**parts | changes))
