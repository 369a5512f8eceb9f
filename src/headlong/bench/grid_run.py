"""Measuring a grid: cell after cell, as long as time lasts; what is known is not measured again.

In:  cells in order, their prompts, the models, results of earlier runs. Out: one flat record per
cell. Inside a cell plain decoding and the cell's own setting answer every prompt in turn, on one
model. Every precision is loaded once, every drafter made once, and all are kept.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headlong.bench.figures import Group, describe_group, pair_rows
from headlong.bench.grid_cells import Cell, GridDrafter
from headlong.bench.local_side import LocalSide
from headlong.bench.measure import STOPPED_BY_USER, Measured, QuestionPlan, Side, run_ab
from headlong.bench.prompt_sets import BenchPrompt, hash_all, short_hash
from headlong.bench.rows import first_divergence, make_row
from headlong.config import DrafterName, MtpMode, QuantName
from headlong.errors import HeadlongError, RequestError
from headlong.llm import LLM

Record: TypeAlias = dict[str, Any]
"""A measured cell: its levels, its figures, its key; flat, for JSON and CSV."""

FIGURES = (
    "speedup", "low", "high", "num_prompts", "decode_speedup", "plain_tokens_per_second",
    "tokens_per_second", "acceptance_length", "acceptance_rate", "num_drafted", "num_accepted",
    "num_identical", "num_compared", "divergence", "error", "seconds", "commit", "key",
)  # fmt: skip
"""The fields of a record besides its levels."""

CELL_COLUMNS = (*(field.name for field in fields(Cell)), *FIGURES)

BASELINE = "off"
CONTROL = "off again"
_DRAFTERS: dict[GridDrafter, DrafterName] = {"chain": "auto", "head": "head", "ngram": "ngram"}


class SideMaker(Protocol):
    """What makes the sides of a cell."""

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
        """Return the conditions that an earlier result of this cell must share to be reused."""
        prompts = hash_all(prompt.hash for prompt in self.prompts[cell.task])
        asked = [asdict(cell), prompts, self.max_tokens, self.seed, self.place]
        return short_hash(json.dumps(asked, sort_keys=True).encode())


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
    began_s = time.monotonic()
    asked = QuestionPlan(
        plan.prompts[cell.task], (cell.temperature,), plan.max_tokens, seed=plan.seed
    )
    try:
        sides = maker.sides(cell)
        measured = run_ab(sides, asked)
        if measured.stopped == STOPPED_BY_USER:
            raise KeyboardInterrupt  # half a cell is none
        figures = _read_figures(cell, sides, measured)
    except HeadlongError as error:  # one setting that cannot be had; the others may
        figures = {"error": str(error)}
    record = asdict(cell) | dict.fromkeys(FIGURES) | figures
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
    divergence = first_divergence(measured.runs, names[0])
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


@dataclass(slots=True)
class GridModels:
    """Makes sides for cells; loads what it has not loaded yet."""

    load: Callable[[QuantName], LLM]
    """Loads the model in a precision, with whatever drafter."""
    head: Path | None = None
    """Folder of the head; None takes the model's own, or the one that comes with Headlong."""
    is_raw: bool = False
    _models: dict[QuantName, LLM] = field(default_factory=dict)
    _drafted: dict[tuple[QuantName, QuantName | None, GridDrafter | None], LLM] = field(
        default_factory=dict
    )
    _sides: dict[tuple[str, ...], LocalSide] = field(default_factory=dict)

    def model(self, quant: QuantName) -> LLM:
        """Return the model in a precision."""
        if quant not in self._models:
            self._models[quant] = self.load(quant)
        return self._models[quant]

    def sides(self, cell: Cell) -> tuple[Side, Side]:
        """Return plain decoding, and what the cell compares with it."""
        name = CONTROL if cell.is_control else str(cell.mtp)
        return self._side(cell, BASELINE, "off"), self._side(cell, name, cell.mtp)

    def _side(self, cell: Cell, name: str, mtp: MtpMode) -> LocalSide:
        key = (cell.quant, str(cell.head_quant), str(cell.drafter), name)
        if key not in self._sides:
            self._sides[key] = LocalSide(self._with_drafter(cell), mtp, self.is_raw, name)
        return self._sides[key]

    def _with_drafter(self, cell: Cell) -> LLM:
        key = (cell.quant, cell.head_quant, cell.drafter)
        if key not in self._drafted:
            model = self.model(cell.quant)
            self._drafted[key] = model if cell.drafter is None else self._draft_for(model, cell)
        return self._drafted[key]

    def _draft_for(self, model: LLM, cell: Cell) -> LLM:
        assert cell.drafter is not None
        name = _DRAFTERS[cell.drafter]
        if cell.head_quant is None:
            return model.with_drafter(drafter=name)
        llm = model.with_drafter(drafter=name, head=self.head, head_quant=cell.head_quant)
        if llm.head is None:  # a chain would quietly go on with n-grams alone
            raise RequestError(
                f"The model has no head, so drafter {cell.drafter!r} cannot be measured.",
                "Name one with --head DIR, or measure n-grams: --drafter ngram.",
            )
        return llm
