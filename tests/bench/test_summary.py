"""The document of a measurement, and of two that are compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench_parts import make_document, make_pairs
from headlong.bench.conclusion import Wording
from headlong.bench.summary import choose_side, compare, load_results
from headlong.errors import RequestError


def test_gain_is_in_the_first_fields() -> None:
    document = make_document(make_pairs({"code": [1.9, 2.0, 2.1, 2.0]}))
    assert document["verdict"].startswith("Enable it, auto: 2.00 × [1.")
    assert 1.98 < document["speedup"] < 2.02
    low, high = document["speedup_interval"]
    assert 1.7 < low < document["speedup"] < high < 2.3
    assert set(document["p95"]) == {"off", "auto"}
    assert document["overall"]["speedups"]["auto"]["outcome"] == "gain"


def test_temperatures_are_named_unless_all_is_greedy() -> None:
    rows = make_pairs({"code": [2.0] * 4})
    assert [group["name"] for group in make_document(rows)["tasks"]] == ["code"]
    rows += make_pairs({"code": [0.9] * 4}, temperature=0.9)
    document = make_document(rows)
    assert [group["name"] for group in document["tasks"]] == ["code at 0", "code at 0.9"]
    assert "leave it off for code at 0.9 (0.90 × [0.90–0.90])" in document["verdict"]
    settings = {one["name"]: one["mtp"] for one in document["recommended"]["by_task"]}
    assert settings == {"code at 0": "auto", "code at 0.9": "off"}


def test_different_texts_forbid_a_recommendation() -> None:
    """Exactness: what changes the text is not worth any speed."""
    rows = make_pairs({"code": [2.0] * 4})
    rows[1] = replace(rows[1], tokens_hash="other")
    document = make_document(rows)
    assert document["verdict"].startswith("Do not enable it: 1 of 4 texts differ")
    assert document["recommended"] is None
    assert document["identical"]["all"] is False


def test_servers_may_differ_in_their_texts() -> None:
    rows = [replace(row, tokens_hash=None) for row in make_pairs({"code": [2.0] * 4})]
    rows[1] = replace(rows[1], text_hash="other")
    document = make_document(rows, wording=Wording.SIDES)
    assert document["verdict"].startswith("auto is faster than off: 2.00 ×")
    assert document["recommended"]["side"] == "auto"
    assert document["identical"]["num_identical"] == 3


def test_nothing_measured_is_said() -> None:
    rows = [replace(row, error="gone") for row in make_pairs({"code": [2.0]})]
    document = make_document(rows, stopped="stopped with Ctrl-C")
    assert document["verdict"] == "Nothing was measured."
    assert document["overall"] is None
    assert document["speedup"] is None
    assert len(document["failures"]) == 2


def test_single_side_is_recorded_as_a_baseline() -> None:
    rows = [row for row in make_pairs({"code": [2.0] * 3}) if row.side == "off"]
    document = make_document(rows, sides={"off": "a server"}, wording=Wording.SIDES)
    assert document["verdict"].startswith("Recorded as a baseline: 11.0 tokens/s over 3 prompts.")
    assert document["speedup"] is None
    assert document["p95"] == {"off": 1.0}


def test_uneven_caches_are_named() -> None:
    rows = [
        replace(row, num_prompt_tokens=100, num_cached_tokens=80 if row.side == "auto" else 0)
        for row in make_pairs({"code": [2.0] * 4})
    ]
    assert any("read from a cache: off 0%, auto 80%" in n for n in make_document(rows)["notes"])
    even = [replace(row, num_cached_tokens=50) for row in rows]
    assert make_document(even)["notes"] == []


SPEEDUPS = {"code": [1.5, 1.6, 1.4, 1.5], "chat": [1.0, 1.02, 0.98, 1.0]}


def recorded(base_s: float, **changes: Any) -> dict[str, Any]:
    """Return the document of a single side, as --url with one address records it."""
    rows = [row for row in make_pairs(SPEEDUPS, base_s=base_s) if row.side == "off"]
    rows = [replace(row, side="A") for row in rows]
    settings = {"sides": {"A": "a server"}, "wording": Wording.SIDES}
    return json.loads(json.dumps(make_document(rows, **settings | changes)))  # type: ignore[no-any-return] # any JSON


def test_speedup_is_old_time_over_new_time() -> None:
    document, rows = compare(recorded(2.0), recorded(1.0))
    assert document["speedup"] == pytest.approx(2.0)
    assert document["verdict"].startswith("new is faster than old: 2.00 × [2.00–2.00]")
    assert [side["name"] for side in document["sides"]] == ["old", "new"]
    assert len(rows) == 16
    assert document["identical"]["all"] is True


def test_becoming_slower_is_said() -> None:
    document, _ = compare(recorded(1.0), recorded(1.25))
    assert document["verdict"].startswith("new is slower than old: 0.80 ×")


def test_different_prompts_are_refused_with_both_numbers() -> None:
    other = recorded(1.0, prompts={"source": "x", "num": 1, "hash": "9999", "skipped": []})
    other["runs"] = other["runs"][:3]
    with pytest.raises(RequestError) as caught:
        compare(recorded(1.0), other)
    assert "did not ask the same prompts: 5 were only asked in the old one" in str(caught.value)
    assert "0123 and 9999" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"max_tokens": [64], "temperatures": [0.0], "seed": 0}}, "max_tokens"),
        ({"settings": {"max_tokens": [32], "temperatures": [0.7], "seed": 0}}, "temperatures"),
        ({"token_counter": "pieces"}, "counted differently"),
    ],
)
def test_different_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        compare(recorded(1.0), recorded(1.0, **changes))


def test_questions_answered_once_are_left_out_and_counted() -> None:
    partial = recorded(1.0)
    partial["runs"] = partial["runs"][:5]
    document, _ = compare(recorded(2.0), partial)
    assert document["num_answered"] == 5
    assert any("3 questions were only answered once" in note for note in document["notes"])


def test_whatever_else_changed_is_named() -> None:
    conditions = {"cpu": "another cpu", "num_cores": 2, "measured_at": "2026-02-02T00:00:00"}
    new = recorded(1.0, conditions=conditions, setup={"model": "other.gguf"})
    notes = " ".join(compare(recorded(1.0), new)[0]["notes"])
    assert "2026-01-01T00:00:00 and 2026-02-02T00:00:00" in notes
    assert "cpu was some cpu and is another cpu." in notes
    assert "model was tiny.gguf and is other.gguf." in notes


def test_side_is_the_only_one_the_best_or_the_one_named() -> None:
    both = make_document(make_pairs(SPEEDUPS))
    assert choose_side(recorded(1.0), None, "old") == "A"
    assert choose_side(both, None, "old") == "auto"
    assert choose_side(both, "off", "old") == "off"
    with pytest.raises(RequestError, match="old has no side '7'"):
        choose_side(both, "7", "old")


def test_results_are_read_from_files_and_folders(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(recorded(1.0)))
    assert load_results(path) == load_results(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "headlong-bench", "format": 1}'])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RequestError, match=r"x\.json"):
        load_results(path)
    with pytest.raises(RequestError, match="cannot be read"):
        load_results(tmp_path / "missing.json")
