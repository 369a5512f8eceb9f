"""The document of a load: throughput, percentiles and gains are those the log was made with."""

from dataclasses import replace

import pytest

from headlong.bench.load_client import Asked, Ending
from headlong.bench.load_run import Level, LoadLog, Slice
from headlong.bench.load_summary import list_requests
from headlong.bench.measure import Question, Run
from load_parts import make_asked, make_load_document, make_load_plan, make_log

PLAN = make_load_plan()


def seconds(mode: str, level: Level, name: str) -> float:
    """Agents are twice as fast with auto when alone, and as fast as ever among four."""
    if mode == "off":
        return 1.0
    return {("agents", 1): 0.5, ("chat", 1): 0.8}.get((name, int(level.value)), 1.0)


def test_throughput_and_percentiles_are_exact() -> None:
    document = make_load_document(make_log(PLAN, seconds), PLAN)
    alone, four = document["levels"]
    assert (alone["name"], alone["value"]) == ("1 at a time", 1)
    off, auto = alone["modes"]["off"], alone["modes"]["auto"]
    assert off["tokens_per_second"] == pytest.approx(10.0)  # 10 tokens a second, one by one
    assert auto["tokens_per_second"] == pytest.approx(80 / (4 * 0.5 + 4 * 0.8))
    assert (off["num_requests"], off["num_done"], off["num_busy"]) == (16, 16, 0)
    assert off["ttft_p50_ms"] == off["ttft_p99_ms"] == pytest.approx(100.0)
    assert off["gap_p50_ms"] == pytest.approx(100.0)
    assert off["latency_p95_s"] == pytest.approx(1.0)
    assert auto["latency_p50_s"] == pytest.approx(0.65)
    assert auto["requests_per_second"] == pytest.approx(16 / auto["seconds"])
    assert auto["acceptance_length"] == pytest.approx(2.0)
    assert four["modes"]["auto"]["tokens_per_second"] == pytest.approx(10.0)


def test_gains_by_class_are_exact_and_judged() -> None:
    document = make_load_document(make_log(PLAN, seconds), PLAN)
    alone, four = document["levels"]
    gains = {one["task"]: one for one in alone["classes"]}
    assert gains["agents"]["value"] == pytest.approx(2.0)
    assert gains["chat"]["value"] == pytest.approx(1.25)
    assert gains["agents"]["outcome"] == gains["chat"]["outcome"] == "gain"
    assert gains["agents"]["low"] == pytest.approx(2.0)  # every prompt says the same
    assert alone["gain"]["value"] == pytest.approx(16 / (8 * 0.5 + 8 * 0.8))
    assert alone["throughput_gain"]["value"] == pytest.approx(16 / (8 * 0.5 + 8 * 0.8), rel=0.02)
    assert four["gain"]["outcome"] == "same"
    assert document["identical"] == {"all": True, "num_compared": 32, "num_identical": 32}


def test_tokens_after_the_end_of_a_slice_do_not_count() -> None:
    """Else a long tail would make a slice look faster than it was."""
    question = Question(PLAN.prompts["chat"][0], 0.0, 10, 0, 0)
    asked = make_asked(question, "off", 100.0, 4.0)  # tokens at 0.4, 0.8, 1.2, … 4.0 s
    log = LoadLog([Slice(Level(1), 0, "off", 2.1, 100.0, [asked])])
    document = make_load_document(log, make_load_plan(modes=["off"]))
    off = document["levels"][0]["modes"]["off"]
    assert off["tokens_per_second"] == pytest.approx(5 / 2.1)
    assert off["requests_per_second"] == pytest.approx(0.5 / 2.1)


def test_busy_and_failed_requests_are_counted_apart() -> None:
    log = make_log(PLAN, seconds)
    first = log.slices[0]
    question = first.asked[0].run.question
    more = [
        Asked(Run("off", question, 0, error="The server was busy."), Ending.BUSY, 100.0),
        Asked(Run("off", question, 0, error="Broke."), Ending.FAILED, 100.0),
        Asked(Run("off", question, 0, error="Broke."), Ending.FAILED, 100.0),
    ]
    log.slices[0] = replace(first, asked=[*first.asked, *more])
    document = make_load_document(log, PLAN)
    off = document["levels"][0]["modes"]["off"]
    assert (off["num_requests"], off["num_busy"], off["num_failed"]) == (19, 1, 2)
    assert off["latency_p50_s"] == pytest.approx(1.0)
    assert document["failures"] == [
        {"side": "off", "prompt": question.prompt.name, "error": "Broke."}
    ]


def test_texts_that_differ_are_counted() -> None:
    log = make_log(PLAN, seconds)
    one = log.slices[1]
    run = one.asked[0].run
    assert run.answer is not None
    other = replace(one.asked[0], run=replace(run, answer=replace(run.answer, text="else")))
    log.slices[1] = replace(one, asked=[other, *one.asked[1:]])
    document = make_load_document(log, PLAN)
    assert document["identical"] == {"all": False, "num_compared": 32, "num_identical": 31}
    assert document["verdict"].startswith("1 of 32 texts differ between the modes")


def test_stopped_and_empty_loads_have_documents() -> None:
    log = make_log(PLAN, seconds)
    partial = LoadLog(log.slices[:1], "stopped with Ctrl-C")
    document = make_load_document(partial, PLAN)
    assert (document["num_levels"], document["num_planned"]) == (1, 2)
    assert document["levels"][0]["gain"] is None
    empty = make_load_document(LoadLog(stopped="x"), PLAN)
    assert empty["verdict"] == "Nothing was measured."


def test_every_request_is_a_row() -> None:
    rows = list_requests(make_log(PLAN, seconds))
    assert len(rows) == 2 * 2 * 2 * 8
    assert rows[0]["level"] == "1 at a time"
    assert (rows[1]["ending"], float(rows[1]["began_s"])) == ("done", 1.0)
