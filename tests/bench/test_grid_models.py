"""The models of a grid: loaded once, shared, and both sides say the same."""

from pathlib import Path

import pytest

from bench_parts import make_prompt, make_question
from grid_parts import AXES
from headlong.bench.grid_cells import Cell
from headlong.bench.grid_models import GridModels, GridSide
from headlong.config import QuantName
from headlong.errors import RequestError
from headlong.llm import LLM

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
    own = {id(side.side.llm) for pair in sides for side in pair if isinstance(side, GridSide)}
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
    assert isinstance(side, GridSide)
    side.warm_up(QUESTION)
    monkeypatch.setattr(side, "side", None)  # would break a second one
    side.warm_up(QUESTION)


def test_chain_without_a_head_is_refused(models: GridModels) -> None:
    """It would quietly be n-grams alone, and the grid would compare a thing with itself."""
    with pytest.raises(RequestError, match="The model has no head, so drafter 'chain'"):
        models.sides(Cell("code", 0.0, "q8", 3, "chain", "q8"))
