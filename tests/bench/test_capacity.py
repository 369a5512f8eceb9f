"""Workers, costs and rates against values computed by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headlong.bench.capacity import (
    Rates,
    Workload,
    give_rates,
    measure_rates,
    one_of_each_task,
    plan_capacity,
    read_rates,
)
from headlong.bench.measure import FORMAT, Run
from headlong.bench.rows import Row
from headlong.bench.summary import KIND
from headlong.errors import RequestError
from headlong.llm import LLM

AGENT = Workload(
    tasks_per_hour=100,
    steps=3,
    prompt_tokens=1000,
    new_tokens=100,
    tool_tokens=50,
    tool_s=2.0,
    reuse=0.5,
    utilisation=0.5,
)
RATES = Rates(read_tokens_per_second=1000, write_tokens_per_second=50)


def test_steps_read_what_is_new_and_what_was_not_kept() -> None:
    # 1,000; then 50 new and half of 1,100; then 50 and half of 1,250.
    assert AGENT.read_tokens == 1000 + (50 + 550) + (50 + 625)
    assert AGENT.written_tokens == 300
    # 1,000 + 100, + 50 + 100, + 50 + 100.
    assert AGENT.last_context == 1400


def test_perfect_reuse_reads_every_token_once() -> None:
    assert replace(AGENT, reuse=1.0).read_tokens == 1000 + 50 + 50


def test_no_reuse_reads_the_whole_context_again() -> None:
    assert replace(AGENT, reuse=0.0).read_tokens == 1000 + 1150 + 1300


def test_one_step_has_no_tools() -> None:
    capacity = plan_capacity(replace(AGENT, steps=1), RATES)
    assert capacity.tool_s == 0
    assert capacity.task_s == 1000 / 1000 + 100 / 50


def test_workers_are_computed_and_rounded_up() -> None:
    capacity = plan_capacity(AGENT, RATES, worker_cost_per_hour=2.0)
    assert capacity.read_s == pytest.approx(2.275)
    assert capacity.write_s == pytest.approx(6.0)
    assert capacity.tool_s == 4.0
    assert capacity.task_s == pytest.approx(12.275)
    # 100 × 8.275 s = 827.5 s of work an hour: 0.2299 workers, 0.46 at half utilisation.
    assert capacity.workers == 1
    assert capacity.busy_share == pytest.approx(827.5 / 3600)
    assert capacity.tasks_in_flight == pytest.approx(1227.5 / 3600)
    more = plan_capacity(replace(AGENT, tasks_per_hour=1000), RATES, worker_cost_per_hour=2.0)
    assert more.workers == 5  # 4.597 rounded up
    assert more.cost_per_hour == 10.0
    assert more.cost_per_task == pytest.approx(0.01)


def test_held_workers_wait_for_tools_too() -> None:
    held = replace(AGENT, tasks_per_hour=1000, holds_worker=True)
    assert plan_capacity(held, RATES).workers == math.ceil(12275 / 3600 / 0.5)


def test_exact_fit_needs_no_worker_more() -> None:
    """1.1 × 3 is 3.3000000000000003 in floats; that is no fourth worker."""
    workload = Workload(
        tasks_per_hour=3600 * 1.1, prompt_tokens=1, new_tokens=3, reuse=0.0, utilisation=1.0
    )
    rates = Rates(read_tokens_per_second=1e12, write_tokens_per_second=3.3)
    assert plan_capacity(workload, rates).workers == 1
    assert plan_capacity(replace(workload, tasks_per_hour=3961), rates).workers == 2


def test_faster_writing_saves_workers_but_not_tools_or_reading() -> None:
    workload = replace(AGENT, tasks_per_hour=1000)
    faster = plan_capacity(workload, replace(RATES, write_tokens_per_second=100))
    assert faster.read_s == plan_capacity(workload, RATES).read_s
    assert faster.write_s == pytest.approx(3.0)
    assert faster.workers == 3  # 2.93


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tasks_per_hour", 0),
        ("tasks_per_hour", math.nan),
        ("tasks_per_hour", math.inf),
        ("steps", 0),
        ("prompt_tokens", 0),
        ("new_tokens", 0),
        ("tool_tokens", -1),
        ("tool_s", -0.1),
        ("tool_s", math.inf),
        ("reuse", 1.1),
        ("reuse", -0.1),
        ("utilisation", 0.0),
        ("utilisation", 1.01),
    ],
)
def test_impossible_workloads_are_refused(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match="It must be"):
        replace(AGENT, **{name: value})


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(RequestError):
        Rates(rate, 10)
    with pytest.raises(RequestError):
        Rates(10, rate)


@pytest.mark.parametrize("cost", [-1.0, math.nan, math.inf])
def test_impossible_prices_are_refused(cost: float) -> None:
    with pytest.raises(RequestError):
        plan_capacity(AGENT, RATES, cost)


def row(side: str, prompt: str, ttft_s: float, total_s: float, **more: Any) -> dict[str, Any]:
    """One answer of 101 tokens to a prompt of 200."""
    numbers: dict[str, Any] = {"num_tokens": 101, "num_prompt_tokens": 200} | more
    asked: dict[str, Any] = {"temperature": 0.0, "max_tokens": 101, "run": 0, "seed": 0, "place": 0}
    made = Row(side, "code", prompt, prompt, **asked, ttft_s=ttft_s, total_s=total_s, **numbers)
    return made.to_dict()


def write_results(path: Path, runs: list[dict[str, Any]], **changes: Any) -> Path:
    """Write a results file as `headlong bench` does, as far as a plan reads it."""
    document = {
        "kind": KIND,
        "format": FORMAT,
        "sides": [{"name": "off", "label": "MTP off"}, {"name": "auto", "label": "MTP auto"}],
        "candidate": "auto",
        "runs": runs,
        "prompts": {},
        "settings": {},
        "setup": {},
        "conditions": {},
        "token_counter": "",
    }
    path.write_text(json.dumps(document | changes))
    return path


def test_given_rates_leave_reading_as_it_is() -> None:
    pair = give_rates(50, 800, 1.5)
    assert pair.plain == Rates(800, 50)
    assert pair.mtp == Rates(800, 75)
    assert pair.speedup == 1.5
    assert give_rates(50, 800, None).mtp is None


@pytest.mark.parametrize("speedup", [0.0, -2.0, float("nan")])
def test_impossible_speedup_is_refused(speedup: float) -> None:
    with pytest.raises(RequestError, match="speedup"):
        give_rates(50, 800, speedup)


def test_results_give_what_was_measured(tmp_path: Path) -> None:
    runs = [
        row("off", "a", ttft_s=0.2, total_s=2.2),
        row("auto", "a", ttft_s=0.25, total_s=1.25),
        row("off", "b", ttft_s=0.2, total_s=2.2),
        row("auto", "b", ttft_s=0.25, total_s=1.25),
        # Answered by one side only: does not count.
        row("off", "c", ttft_s=9.0, total_s=99.0),
    ]
    pair = read_rates(write_results(tmp_path / "results.json", runs))
    # 2 × 200 prompt tokens in 0.4 s, 2 × 100 later tokens in 4 s.
    assert pair.plain.read_tokens_per_second == pytest.approx(1000)
    assert pair.plain.write_tokens_per_second == pytest.approx(50)
    assert pair.mtp is not None
    assert pair.mtp.read_tokens_per_second == pytest.approx(800)
    assert pair.mtp.write_tokens_per_second == pytest.approx(100)
    assert pair.speedup == pytest.approx(2.0)


def test_remembered_prompt_tokens_were_not_read(tmp_path: Path) -> None:
    runs = [
        row(side, "a", ttft_s=0.1, total_s=1.1, num_cached_tokens=150) for side in ("off", "auto")
    ]
    pair = read_rates(write_results(tmp_path / "results.json", runs))
    assert pair.plain.read_tokens_per_second == pytest.approx(500)


def test_prompts_out_of_a_cache_tell_no_reading_rate(tmp_path: Path) -> None:
    """One token in the time of a whole first token would plan hundreds of workers too many."""
    runs = [
        row(side, "a", ttft_s=0.1, total_s=1.1, num_cached_tokens=199) for side in ("off", "auto")
    ]
    with pytest.raises(RequestError, match="came from a cache"):
        read_rates(write_results(tmp_path / "results.json", runs))


def test_results_of_one_side_plan_without_mtp(tmp_path: Path) -> None:
    runs = [row("off", "a", ttft_s=0.1, total_s=1.1)]
    sides = [{"name": "off", "label": "MTP off"}]
    path = write_results(tmp_path / "results.json", runs, sides=sides, candidate=None)
    assert read_rates(path).mtp is None


def test_results_without_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no question that all sides have answered"):
        read_rates(write_results(tmp_path / "results.json", []))


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"kind": "something"}')
    with pytest.raises(RequestError):
        read_rates(tmp_path / "x.json")


def test_prompts_of_unknown_length_are_refused(tmp_path: Path) -> None:
    runs = [row(s, "a", 0.1, 1.1, num_prompt_tokens=None) for s in ("off", "auto")]
    with pytest.raises(RequestError, match="how long prompts"):
        read_rates(write_results(tmp_path / "results.json", runs))


def test_tiny_model_is_measured_both_ways(tiny_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.bench.capacity.MEASURED_TOKENS", 8)
    monkeypatch.setattr("headlong.bench.capacity.TIME_BUDGET_S", 1.0)
    seen: list[str] = []
    pair = measure_rates(tiny_llm, lambda run: seen.append(run.side))
    assert pair.mtp is not None
    assert min(pair.plain.read_tokens_per_second, pair.mtp.write_tokens_per_second) > 0
    assert {"off", "auto"} == set(seen)


def test_stopped_measurement_makes_no_plan(tiny_llm: LLM) -> None:
    """Ctrl-C must end the command, not plan with the few answers that were there."""
    seen: list[str] = []

    def stop(run: Run) -> None:
        seen.append(run.side)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_rates(tiny_llm, stop)


def test_every_built_in_task_is_measured_once() -> None:
    tasks = [prompt.task for prompt in one_of_each_task()]
    assert len(tasks) == len(set(tasks)) >= 5
