"""The models of a grid: every precision loaded once, every drafter made once, all kept.

In:  a way to load the model in a precision, cells. Out: the two sides of a cell.
A cell's sides share one model, its memory and its token counter. What an engine has learned about
costs and acceptance stays with it from cell to cell, as it would in use.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headlong.bench.grid_cells import Cell, GridDrafter
from headlong.bench.local_side import LocalSide
from headlong.bench.measure import Answer, Question, Side
from headlong.config import DrafterName, QuantName
from headlong.errors import RequestError
from headlong.llm import LLM

BASELINE = "off"
CONTROL = "off again"

_DRAFTERS: dict[GridDrafter, DrafterName] = {"chain": "auto", "head": "head", "ngram": "ngram"}


@dataclass(slots=True)
class GridSide:
    """A side that is warmed up once, however many cells it takes part in."""

    name: str
    side: LocalSide
    is_warm: bool = False

    @property
    def label(self) -> str:
        """The mode for people."""
        return self.side.label

    def warm_up(self, question: Question) -> None:
        """Touch every weight and every path, the first time."""
        if not self.is_warm:
            self.side.warm_up(question)
        self.is_warm = True

    def answer(self, question: Question) -> Answer:
        """Answer a question."""
        return self.side.answer(question)


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
    _sides: dict[tuple[int, str], GridSide] = field(default_factory=dict)

    def model(self, quant: QuantName) -> LLM:
        """Return the model in a precision."""
        if quant not in self._models:
            self._models[quant] = self.load(quant)
        return self._models[quant]

    def sides(self, cell: Cell) -> tuple[Side, Side]:
        """Return plain decoding, and what the cell compares with it."""
        llm = self._with_drafter(cell)
        name = CONTROL if cell.is_control else str(cell.mtp)
        return self._side(llm, BASELINE, cell), self._side(llm, name, cell)

    def _side(self, llm: LLM, name: str, cell: Cell) -> GridSide:
        key = (id(llm), name)
        if key not in self._sides:
            mtp = "off" if name == BASELINE else cell.mtp
            self._sides[key] = GridSide(name, LocalSide(llm, mtp, self.is_raw))
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
