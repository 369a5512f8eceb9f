"""A grid measures what is not known yet, on models that are loaded once."""

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench_parts import FakeClock, ScriptedSide, make_answer, make_prompt, make_question, refuse
from grid_parts import AXES, ScriptedMaker, known_log, make_plan, measure
from headlong.bench.grid_cells import Cell, order_cells
from headlong.bench.grid_run import GridModels, Record, run_grid
from headlong.bench.local_side import LocalSide
from headlong.bench.measure import Side
from headlong.config import QuantName
from headlong.errors import RequestError
from headlong.llm import LLM


def test_every_cell_has_the_figures_it_was_made_with() -> None:
    measured = measure()
    assert measured.stopped is None
    cells = order_cells(AXES)
    assert len(measured.records) == len(cells)
    for cell, record in zip(cells, measured.records, strict=True):
        assert record["speedup"] == pytest.approx(math.exp(known_log(cell)))
        assert record["plain_tokens_per_second"] == pytest.approx(11)
        assert record["tokens_per_second"] == pytest.approx(11 * math.exp(known_log(cell)))
        assert record["decode_speedup"] == pytest.approx(record["speedup"])
        assert record["acceptance_length"] == pytest.approx(2.5)
        assert (record["num_identical"], record["num_compared"]) == (2, 2)
        assert record["error"] is record["divergence"] is None


def test_known_cells_are_not_measured_again() -> None:
    plan = make_plan()
    whole = run_grid(ScriptedMaker(), plan, {})
    known = {record["key"]: record for record in whole.records[:7]}
    maker, heard = ScriptedMaker(), []
    again = run_grid(maker, plan, known, lambda cell, record: heard.append(cell))
    assert maker.asked == heard == list(plan.cells[7:])
    assert [r["key"] for r in again.records] == [r["key"] for r in whole.records]


def test_key_is_another_one_for_anything_that_matters() -> None:
    plan = make_plan()
    cell = plan.cells[0]
    others = [
        replace(plan, max_tokens=33).key(cell),
        replace(plan, seed=1).key(cell),
        replace(plan, place="another model").key(cell),
        replace(plan, prompts={cell.task: [make_prompt(9)]}).key(cell),
        plan.key(plan.cells[1]),
    ]
    assert len({plan.key(cell), *others}) == 6
    assert replace(plan, commit="abc", time_budget_s=3).key(cell) == plan.key(cell)


def test_budget_ends_the_run_but_keeps_known_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock)
    plan = make_plan(time_budget_s=25.0)
    last = run_grid(ScriptedMaker(), make_plan(plan.cells[-1:]), {}).records[0]

    def note(cell: Cell, record: Record) -> None:
        clock.advance(10.0)

    measured = run_grid(ScriptedMaker(), plan, {last["key"]: last}, note)
    assert measured.stopped == "the time budget of 25 s was used up"
    assert [r["key"] for r in measured.records] == [
        *map(plan.key, plan.cells[:3]), last["key"],
    ]  # fmt: skip


def test_ctrl_c_drops_half_a_cell_and_keeps_the_rest() -> None:
    left = iter(range(4))

    def rule(cell: Cell) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 0.1

    measured = run_grid(ScriptedMaker(rule), make_plan(), {})
    assert measured.stopped == "stopped with Ctrl-C"
    assert len(measured.records) == 4


class RefusingMaker:
    """Makes sides that do not answer."""

    def sides(self, cell: Cell) -> tuple[Side, Side]:
        """Return both sides of a cell."""
        return ScriptedSide("off", lambda question: make_answer()), ScriptedSide("auto", refuse)


def test_failed_cells_carry_their_error() -> None:
    measured = run_grid(RefusingMaker(), make_plan(order_cells(AXES)[:2]), {})
    assert [record["speedup"] for record in measured.records] == [None, None]
    assert all("No answer to" in record["error"] for record in measured.records)


def test_texts_that_differ_are_noted() -> None:
    measured = measure(token_ids=(1, 2, 3))
    assert {record["num_identical"] for record in measured.records} == {0}
    assert "parts from the baseline at token 1" in str(measured.records[0]["divergence"])


QUESTION = make_question(make_prompt(1))


@pytest.fixture
def loads() -> list[QuantName]:
    """The precisions that were loaded so far."""
    return []


@pytest.fixture
def models(tiny_model_path: Path, loads: list[QuantName]) -> GridModels:
    """The tiny model in any precision."""

    def load(quant: QuantName) -> LLM:
        loads.append(quant)
        return LLM.load(tiny_model_path, backend="numpy", quant=quant, drafter="none")

    return GridModels(load)


def test_every_precision_is_loaded_once(models: GridModels, loads: list[QuantName]) -> None:
    cells = [
        Cell("code", temperature, quant, mode, "ngram", None)
        for quant in AXES.quants
        for temperature in AXES.temperatures
        for mode in (2, "auto")
    ]  # fmt: skip
    sides = [models.sides(cell) for cell in cells]
    assert loads == ["q4", "q8"]
    assert sides[0] == sides[2]  # another temperature: the same engine
    assert sides[0][0] is sides[1][0]  # plain decoding is one side for all K
    own = {id(side.llm) for pair in sides for side in pair if isinstance(side, LocalSide)}
    assert len(own) == 2


def test_both_sides_say_the_same(models: GridModels) -> None:
    plain, own = models.sides(Cell("code", 0.8, "q8", 3, "ngram", None))
    assert (plain.name, own.name) == ("off", "3")
    assert plain.label == "MTP off"
    assert plain.answer(QUESTION).token_ids == own.answer(QUESTION).token_ids


def test_control_is_plain_decoding_twice(models: GridModels) -> None:
    plain, again = models.sides(Cell("code", 0.0, "q8", "off", None, None))
    assert (plain.name, again.name) == ("off", "off again")
    assert again.label == "MTP off"


def test_sides_are_warmed_up_once(models: GridModels, monkeypatch: pytest.MonkeyPatch) -> None:
    side = models.sides(Cell("code", 0.0, "q8", 3, "ngram", None))[1]
    assert isinstance(side, LocalSide)
    side.warm_up(QUESTION)
    monkeypatch.setattr(side, "llm", None)  # would break a second one
    side.warm_up(QUESTION)


def test_chain_without_a_head_is_refused(models: GridModels) -> None:
    """It would quietly be n-grams alone, and the grid would compare a thing with itself."""
    with pytest.raises(RequestError, match="The model has no head, so drafter 'chain'"):
        models.sides(Cell("code", 0.0, "q8", 3, "chain", "q8"))
