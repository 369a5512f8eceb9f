"""The document of a grid and its words, against a rule that is known."""

import math

import pytest

from grid_parts import KS, TASKS, make_grid_document, measure
from headlong.bench.grid_cells import Cell
from headlong.bench.grid_run import GridMeasured
from headlong.bench.grid_summary import sort_levels


def test_maps_hold_the_means_of_their_cells() -> None:
    document = make_grid_document(measure())
    found = {one["title"]: one for one in document["maps"]}
    tasks = found["Task and K, with a head"]
    assert tasks["rows"] == ["chat", "code", "stories"]
    assert tasks["columns"] == ["2", "4", "auto"]
    for row, cells in zip(tasks["rows"], tasks["cells"], strict=True):
        for k, cell in zip((2, 4, "auto"), cells, strict=True):
            assert cell["speedup"] == pytest.approx(math.exp(TASKS[row] + KS[k]))
            assert cell["num_cells"] == 2 * 2 * 2  # temperatures, precisions of backbone and head
            assert cell["acceptance_length"] == pytest.approx(2.5)
    precision = found["Precision of backbone and head"]
    assert (precision["rows"], precision["columns"]) == (["q8", "q4"], ["q8", "q4"])
    mean = math.exp(0.2 + 0.0)  # of all tasks and of all K
    assert precision["cells"][0][0]["speedup"] == pytest.approx(mean)


def test_shares_are_those_the_grid_was_made_with() -> None:
    document = make_grid_document(measure())
    shares = {one["factor"]: one["share"] for one in document["effects"]["factors"]}
    of_task, of_k = 0.06, 0.02 / 3
    assert shares["task"] == pytest.approx(of_task / (of_task + of_k))
    assert shares["mtp"] == pytest.approx(of_k / (of_task + of_k))
    assert shares["quant"] == shares["temperature"] == pytest.approx(0.0, abs=1e-9)
    levels = {one["factor"]: one["levels"] for one in document["effects"]["factors"]}
    assert [level["level"] for level in levels["mtp"]] == ["2", "4", "auto"]
    assert levels["mtp"][2]["speedup"] == pytest.approx(math.exp(0.2 + 0.1))


def test_controls_tell_the_noise_and_stay_out_of_the_rest() -> None:
    def rule(cell: Cell) -> float:
        return 0.0 if not cell.is_control else 0.04 if cell.temperature else -0.02

    document = make_grid_document(measure(rule=rule))
    noise = document["noise"]
    assert noise["num_cells"] == 4
    assert noise["slowest"] == pytest.approx(math.exp(-0.02))
    assert noise["fastest"] == pytest.approx(math.exp(0.04))
    assert noise["spread"] == pytest.approx(math.sqrt((0.04**2 + 0.02**2) / 2))
    assert document["speedup"] == pytest.approx(1.0)
    assert document["effects"] is None  # all the same: nothing decides


def test_best_worst_and_auto_are_named() -> None:
    document = make_grid_document(measure())
    assert document["best"]["speedup"] == pytest.approx(math.exp(0.6))
    assert document["best"]["cell"].startswith("code at")
    assert document["worst"]["speedup"] == pytest.approx(math.exp(-0.2))
    auto = document["auto"]
    assert (auto["num_cells"], auto["num_faster"]) == (36, 24)  # 1.00 × is not faster
    assert auto["slowest"] == pytest.approx(1.0)
    assert [one["quant"] for one in document["precisions"]] == ["q8", "q4"]
    assert document["precisions"][0]["plain_tokens_per_second"] == pytest.approx(11)


def test_different_commits_are_noted() -> None:
    records = measure().records
    old = [record | {"commit": "a" * 40} for record in records[:3]]
    new = [record | {"commit": "b" * 40} for record in records[3:]]
    document = make_grid_document(GridMeasured([*old, *new]))
    assert document["notes"] == [
        "The cells were measured at different commits: aaaaaaaaaa, bbbbbbbbbb."
    ]


def test_failed_cells_are_listed_and_left_out() -> None:
    records = list(measure().records)
    records[-1] = records[-1] | {"error": "broke", "speedup": None}
    document = make_grid_document(GridMeasured(records))
    assert document["num_measured"] == len(records) - 1
    assert [failure["error"] for failure in document["failures"]] == ["broke"]


def test_levels_are_listed_as_people_would() -> None:
    assert sort_levels(["auto", 6, 1, 2]) == [1, 2, 6, "auto"]
    assert sort_levels(["q4", "f16", "q8", "q4"]) == ["f16", "q8", "q4"]
    assert sort_levels(["qa", "code"]) == ["code", "qa"]


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
