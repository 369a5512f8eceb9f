"""The cells of a grid, and the order in which they are measured.

In:  the levels of every factor. Out: cells, the most informative first: plain decoding against
itself (what noise alone does), then "auto" with everything else as it is by default for every task
and temperature, then all others so that every level, and every pair of levels of two factors, has
been measured about equally often wherever the run ends. Knows nothing of models or clocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from typing import Any, Literal, TypeAlias

import numpy as np

from headlong.config import DEFAULT_HEAD_QUANT, MtpMode, QuantName

GridDrafter: TypeAlias = Literal["chain", "head", "ngram"]

FACTORS = ("task", "temperature", "quant", "head_quant", "mtp", "drafter")
"""What a cell is made of, and what may decide the gain."""

FACTOR_WORDS = {
    "task": "the task",
    "temperature": "the temperature",
    "quant": "the backbone's precision",
    "head_quant": "the head's precision",
    "mtp": "K",
    "drafter": "the drafter",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of levels, compared with plain decoding of the same model."""

    task: str
    temperature: float
    quant: QuantName
    mtp: MtpMode
    """"off" measures plain decoding against itself: a control."""
    drafter: GridDrafter | None
    """None for a control."""
    head_quant: QuantName | None
    """None where no head drafts."""

    @property
    def is_control(self) -> bool:
        """Whether both sides decode plainly."""
        return self.mtp == "off"

    @property
    def name(self) -> str:
        """The cell in one line, for people."""
        return describe_levels(asdict(self))


def describe_levels(levels: Mapping[str, Any]) -> str:
    """Name a cell, given as the fields of one, in one line for people."""
    mode = f"K={levels['mtp']}" if isinstance(levels["mtp"], int) else f"MTP {levels['mtp']}"
    head = "" if levels["head_quant"] is None else f", {levels['head_quant']} head"
    drafter = "" if levels["drafter"] is None else f", {levels['drafter']}"
    where = f"{levels['task']} at {levels['temperature']:g}, {levels['quant']} backbone"
    return f"{where}{head}{drafter}, {mode}"


@dataclass(frozen=True, slots=True)
class Axes:
    """The levels of every factor; the first of each is the default."""

    tasks: tuple[str, ...]
    temperatures: tuple[float, ...] = (0.0, 0.3, 0.7, 1.0)
    quants: tuple[QuantName, ...] = ("q4", "q8", "f16")
    head_quants: tuple[QuantName, ...] = (DEFAULT_HEAD_QUANT, "q4", "f16")
    modes: tuple[MtpMode, ...] = ("auto", "off", 1, 2, 3, 4, 5, 6)
    drafters: tuple[GridDrafter, ...] = ("chain", "head", "ngram")

    def led_by(self, head_quant: QuantName | None) -> "Axes":
        """Return the axes with a head's own precision as the default."""
        if head_quant is None:
            return self
        return replace(self, head_quants=tuple(dict.fromkeys((head_quant, *self.head_quants))))


def list_cells(axes: Axes) -> list[Cell]:
    """Return every cell of the grid, in no special order."""
    modes = [mode for mode in axes.modes if mode != "off"]
    cells = [
        Cell(task, temperature, quant, mode, drafter, head_quant)
        for task, temperature, quant, mode in product(
            axes.tasks, axes.temperatures, axes.quants, modes
        )
        for drafter in axes.drafters
        # N-grams have no head, so its precision changes nothing.
        for head_quant in ((None,) if drafter == "ngram" else axes.head_quants)
    ]
    return _list_controls(axes) + cells


def order_cells(axes: Axes, seed: int = 0) -> list[Cell]:
    """Return every cell, the most informative first; the same for the same seed."""
    cells = list_cells(axes)
    controls = [cell for cell in cells if cell.is_control]
    drafted = [cell for cell in cells if not cell.is_control]
    rng = np.random.default_rng(seed)
    head = set(_list_references(axes, drafted))
    first = [drafted[i] for i in rng.permutation(len(drafted)) if drafted[i] in head]
    rest = [cell for cell in drafted if cell not in head]
    return controls + first + _spread(first, rest, rng)


def _list_controls(axes: Axes) -> list[Cell]:
    """Return one control for each precision and temperature, its task taken in turn."""
    if "off" not in axes.modes:
        return []
    places = product(axes.quants, axes.temperatures)
    return [
        Cell(axes.tasks[i % len(axes.tasks)], temperature, quant, "off", None, None)
        for i, (quant, temperature) in enumerate(places)
    ]


def _list_references(axes: Axes, cells: Sequence[Cell]) -> list[Cell]:
    """Return the default of everything else for every task and temperature."""
    mode = next((mode for mode in axes.modes if mode != "off"), None)
    drafter = axes.drafters[0]
    head_quant = None if drafter == "ngram" else axes.head_quants[0]
    wanted = (axes.quants[0], mode, drafter, head_quant)
    return [c for c in cells if (c.quant, c.mtp, c.drafter, c.head_quant) == wanted]


def _spread(first: Sequence[Cell], rest: Sequence[Cell], rng: np.random.Generator) -> list[Cell]:
    """Order `rest` so that, after `first`, pairs of levels fill up as evenly as they can."""
    cells = [*first, *rest]
    if not rest:
        return []
    pairs = [_number_pairs(cells, *pair) for pair in combinations(FACTORS, 2)]
    crowding = rng.random(len(cells)) * 1e-6  # ties are broken at random, once

    def take(index: int) -> None:
        for numbers, num_levels in pairs:
            crowding[numbers == numbers[index]] += num_levels
        crowding[index] = np.inf

    for index in range(len(first)):
        take(index)
    order = []
    for _ in rest:
        order.append(int(crowding.argmin()))
        take(order[-1])
    return [cells[index] for index in order]


def _number_pairs(cells: Sequence[Cell], one: str, other: str) -> tuple[Any, int]:
    """Number the pairs of levels of two factors; also return how many there are."""
    pairs = [(getattr(cell, one), getattr(cell, other)) for cell in cells]
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return np.array([numbers[pair] for pair in pairs]), len(numbers)
