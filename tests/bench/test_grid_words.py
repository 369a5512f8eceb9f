"""The finding in words: what decides, what hardly matters, and nothing that was not shown."""

from grid_parts import make_grid_document, measure
from headlong.bench.grid_cells import Cell
from headlong.bench.grid_run import GridMeasured


def test_deciding_factors_are_named_with_their_levels() -> None:
    finding = make_grid_document(measure())["finding"]
    assert finding.startswith(
        "What decides the gain here: the task (90 % of the differences; 0.90 × for stories to "
        "1.65 × for code) and K (10 % of the differences; 1.11 × for 4 to 1.35 × for auto)."
    )
    for words in ("the temperature", "the backbone's precision", "hardly matter."):
        assert words in finding.lower()
    assert "Auto was faster in 24 of 36 cells, 1.35 × on the whole" in finding
    assert "Single cells go from 0.82 × (stories" in finding
    assert "Plain decoding against itself came out between 1.00 × and 1.00 ×" in finding


def test_one_control_says_nothing_of_noise() -> None:
    records = measure().records
    few = [record for record in records if record["mtp"] != "off"]
    few.append(next(record for record in records if record["mtp"] == "off"))
    assert "against itself" not in make_grid_document(GridMeasured(few))["finding"]


def test_interplay_is_put_into_words() -> None:
    def rule(cell: Cell) -> float:
        return 0.3 if (cell.task == "code") == (cell.drafter == "chain") else -0.3

    finding = make_grid_document(measure(rule=rule))["finding"]
    assert "because the task and the drafter depend on each other." in finding


def test_few_cells_claim_nothing() -> None:
    records = [record for record in measure().records if record["mtp"] != "off"][:4]
    finding = make_grid_document(GridMeasured(records))["finding"]
    assert finding.startswith("Too few cells to tell what decides the gain")
    assert make_grid_document(GridMeasured([]))["finding"] == "Nothing was measured."


def test_factors_hardly_measured_are_not_judged() -> None:
    """A short run has one or two cells of most K: "hardly matters" would be made up."""
    drafted = [record for record in measure().records if record["mtp"] != "off"]
    autos = [record for record in drafted if record["mtp"] == "auto"]
    others = [record for record in drafted if record["mtp"] != "auto"]
    document = make_grid_document(GridMeasured([*autos, *others[:2]]))
    assert document["effects"]["untold"] == ["mtp"]
    assert "Too few cells to tell about K; let it run longer." in document["finding"]


def test_texts_that_differ_come_first() -> None:
    finding = make_grid_document(measure(token_ids=(1, 2, 3)))["finding"]
    assert finding.startswith("224 of 224 texts differ from plain decoding, which is a bug")
