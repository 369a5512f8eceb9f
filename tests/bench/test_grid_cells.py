"""The cells of a grid: all of them, and in an order that may end anywhere."""

from collections import Counter
from itertools import combinations

import pytest

from headlong.bench.grid_cells import FACTORS, Axes, Cell, list_cells, order_cells

AXES = Axes(tuple("abcdefghi"))


@pytest.fixture(scope="module")
def order() -> list[Cell]:
    """The whole default grid over nine tasks."""
    return order_cells(AXES)


def test_default_grid_has_every_cell_once(order: list[Cell]) -> None:
    controls = 3 * 4  # precisions and temperatures
    drafted = 9 * 4 * 3 * 7 * (3 + 3 + 1)  # n-grams have no head precision
    assert len(order) == len(set(order)) == controls + drafted
    assert set(order) == set(list_cells(AXES))


def test_noise_and_auto_everywhere_come_first(order: list[Cell]) -> None:
    assert all(cell.is_control for cell in order[:12])
    assert {(cell.quant, cell.temperature) for cell in order[:12]} == {
        (quant, temperature) for quant in AXES.quants for temperature in AXES.temperatures
    }
    references = order[12 : 12 + 36]
    assert {(cell.task, cell.temperature) for cell in references} == {
        (task, temperature) for task in AXES.tasks for temperature in AXES.temperatures
    }
    assert {(c.quant, c.head_quant, c.mtp, c.drafter) for c in references} == {
        ("q4", "q8", "auto", "chain")
    }


@pytest.mark.parametrize("num_cells", [120, 200, 333, 700])
def test_any_beginning_is_balanced(order: list[Cell], num_cells: int) -> None:
    """After auto everywhere no level, and no pair of levels, is far behind its share."""
    measured = order[48:num_cells]
    for name in FACTORS:
        if name in ("head_quant", "drafter"):
            continue  # not all their levels go with all others
        counts = Counter(getattr(cell, name) for cell in order[12:num_cells])
        share = len(measured) / len(counts)
        assert min(counts.values()) > 0.6 * share, (name, counts)
    for one, other in combinations(("task", "temperature", "quant", "mtp"), 2):
        pairs = Counter((getattr(c, one), getattr(c, other)) for c in order[12:num_cells])
        least = len(measured) // (len({p[0] for p in pairs}) * len({p[1] for p in pairs}))
        assert min(pairs.values()) >= 0.4 * least, (one, other)


def test_order_is_the_same_for_the_same_seed(order: list[Cell]) -> None:
    assert order_cells(AXES) == order
    assert order_cells(AXES, seed=1) != order


def test_single_levels_make_a_small_grid() -> None:
    axes = Axes(("code",), (0.0,), ("q4",), ("q8",), (3,), ("head",))
    assert order_cells(axes) == [Cell("code", 0.0, "q4", 3, "head", "q8")]


def test_cells_have_names_for_people() -> None:
    assert Cell("code", 0.7, "q4", 3, "chain", "q8").name == (
        "code at 0.7, q4 backbone, q8 head, chain, K=3"
    )
    assert Cell("qa", 0.0, "f16", "off", None, None).name == "qa at 0, f16 backbone, MTP off"


def test_the_heads_own_precision_stands_for_all() -> None:
    axes = Axes(tasks=("code",))
    assert axes.led_by("q4").head_quants == ("q4", "q8", "f16")
    assert axes.led_by("bf16").head_quants[0] == "bf16"
    assert axes.led_by(None) == axes
