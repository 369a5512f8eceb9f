"""Workers, times and cost, against answers computed by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from headlong.bench.plan import Rates, Workload, plan_capacity
from headlong.errors import RequestError

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
    assert capacity.in_flight == pytest.approx(1227.5 / 3600)
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
