"""The document: what was stopped, failed or differs is in it and in its verdict."""

from dataclasses import replace

from bench_parts import make_document, make_pairs
from headlong.bench.conclusion import Wording


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
    """Law 1: what changes the text is not worth any speed."""
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
