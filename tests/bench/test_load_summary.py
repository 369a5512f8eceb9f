"""The document of a load and its words, against figures that are known."""

from dataclasses import replace
from typing import Any

import pytest

from headlong.bench.load_run import Ending, LoadLevel, LoadLog, RequestRecord, Slice
from headlong.bench.load_summary import list_requests, say_load
from headlong.bench.measure import Question, Run
from load_parts import make_asked, make_load_document, make_load_plan, make_log

PLAN = make_load_plan()


def seconds(mode: str, level: LoadLevel, name: str) -> float:
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
    log = LoadLog([Slice(LoadLevel(1), 0, "off", 2.1, 100.0, [asked])])
    document = make_load_document(log, make_load_plan(modes=["off"]))
    off = document["levels"][0]["modes"]["off"]
    assert off["tokens_per_second"] == pytest.approx(5 / 2.1)
    assert off["requests_per_second"] == pytest.approx(0.5 / 2.1)


def test_busy_and_failed_requests_are_counted_apart() -> None:
    log = make_log(PLAN, seconds)
    first = log.slices[0]
    question = first.asked[0].run.question
    more = [
        RequestRecord(Run("off", question, 0, error="The server was busy."), Ending.BUSY, 100.0),
        RequestRecord(Run("off", question, 0, error="Broke."), Ending.FAILED, 100.0),
        RequestRecord(Run("off", question, 0, error="Broke."), Ending.FAILED, 100.0),
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


def make_gain(value: float, outcome: str, task: str | None = None) -> dict[str, Any]:
    """Return a gain as the document has it."""
    return {"task": task, "value": value, "low": value - 0.1, "high": value + 0.1,
            "outcome": outcome}  # fmt: skip


def make_level(number: int, gain: dict[str, Any] | None, **mode: Any) -> dict[str, Any]:
    """Return a level as the document has it."""
    figures = {"num_requests": 10, "num_busy": 0, "num_failed": 0, "tokens_per_second": 50.0}
    classes = [make_gain(2.0, "gain", "agents"), make_gain(1.1, "unknown", "stories")]
    return {
        "name": f"{number} at a time",
        "gain": gain,
        "classes": classes,
        "modes": {"off": figures | mode, "auto": figures | mode},
    }


def say(*levels: dict[str, Any], modes: tuple[str, ...] = ("off", "auto")) -> str:
    """Put levels into words."""
    return say_load({"levels": list(levels), "modes": modes, "identical": None})


def test_levels_are_sorted_by_what_may_be_said() -> None:
    words = say(
        make_level(1, make_gain(1.8, "gain")),
        make_level(2, make_gain(1.5, "gain")),
        make_level(8, make_gain(1.05, "unknown")),
        make_level(32, make_gain(0.8, "loss")),
    )
    assert words == (
        "MTP auto answers faster than off with 1 at a time (1.80 × [1.70–1.90]) and 2 at a time "
        "(1.50 × [1.40–1.60]). Slower with 32 at a time (0.80 × [0.70–0.90]). Not enough data to "
        "tell with 8 at a time (1.05 × [0.95–1.15]). With 1 at a time, agents gain most (2.00 ×) "
        "and stories least (1.10 ×)."
    )


def test_class_that_runs_slower_is_not_said_to_gain() -> None:
    level = make_level(4, make_gain(0.9, "loss"))
    level["classes"] = [make_gain(0.98, "unknown", "agents"), make_gain(0.8, "loss", "chat")]
    assert say(level).endswith(
        "With 4 at a time, chat lose most (0.80 ×) and agents least (0.98 ×)."
    )


def test_trouble_is_counted() -> None:
    words = say(make_level(1, make_gain(1.0, "same"), num_busy=3, num_failed=1))
    assert words.endswith("6 of 20 requests were turned away as busy and 2 of 20 failed.")
    assert "No difference with 1 at a time" in words


def test_one_mode_has_only_its_throughput() -> None:
    level = make_level(1, None)
    level["modes"] = {"plain": level["modes"]["off"]}
    assert say(level, modes=("plain",)) == "At most 50.0 tokens/s, with 1 at a time."


def test_nothing_is_said_of_nothing() -> None:
    assert say() == "Nothing was measured."
    assert say(make_level(1, None)).startswith("Not enough data to tell with 1 at a time.")
