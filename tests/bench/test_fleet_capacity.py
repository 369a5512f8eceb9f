"""Replicas, shares and costs against values computed by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from headlong.bench.fleet_capacity import (
    PLAIN,
    SPECULATIVE,
    FleetTarget,
    MeasuredPool,
    plan_fleet,
    read_pools,
)
from headlong.errors import RequestError
from load_parts import make_load_document, make_load_plan, make_log


def figures(rate: float, latency_s: float) -> dict[str, Any]:
    """Return one level of one replica: answers of 50 tokens."""
    return {
        "requests_per_second": rate,
        "tokens_per_second": 50 * rate,
        "latency_p95_s": latency_s,
        "ttft_p95_ms": 100 * latency_s,
        "gap_p95_ms": 10 * latency_s,
    }


PLAIN_POOL = MeasuredPool(
    PLAIN,
    [("1 at once", figures(1, 1.0)), ("4 at once", figures(3, 2.0)), ("16", figures(8, 6.0))],
    "plain.json",
)
DRAFTING = MeasuredPool(
    SPECULATIVE,
    [("1 at once", figures(2, 0.5)), ("4 at once", figures(5, 1.2)), ("16", figures(7, 5.0))],
    "spec.json",
)
BOTH = (PLAIN_POOL, DRAFTING)


def counts(target: FleetTarget) -> list[int]:
    """Return the replicas of both pools."""
    return [pool.replicas for pool in plan_fleet(target, BOTH).pools]


def test_the_busiest_level_within_the_latency_counts() -> None:
    assert PLAIN_POOL.best(FleetTarget(1, latency_p95_s=2)).level == "4 at once"
    assert PLAIN_POOL.best(FleetTarget(1, ttft_p95_ms=150)).level == "1 at once"
    best = PLAIN_POOL.best(FleetTarget(1))
    assert (best.level, best.is_last) == ("16", True)


def test_replicas_are_rounded_up_and_spared() -> None:
    target = FleetTarget(20, latency_p95_s=2, utilisation=0.5, spare=0)
    # 40 a second are needed: 8 × 5 by drafts; one plain replica there must be.
    assert counts(target) == [1, 8]
    # One of them down, at worst one that drafts: 45.
    assert counts(FleetTarget(20, latency_p95_s=2, utilisation=0.5, spare=1)) == [1, 9]
    plain = plan_fleet(FleetTarget(20, latency_p95_s=2, utilisation=0.5), BOTH[:1])
    assert plain.replicas == 14 + 1  # 40 / 3, rounded up


def test_where_drafts_cost_capacity_the_plain_pool_carries() -> None:
    """Without a bound on latency, 8 a second are more than 7."""
    assert counts(FleetTarget(80, utilisation=1, spare=0)) == [10, 0]


def test_money_goes_by_tokens_really_written() -> None:
    target = FleetTarget(20, latency_p95_s=2, utilisation=0.5, spare=0)
    plan = plan_fleet(target, BOTH, cost_per_hour=2.0)
    assert plan.tokens_per_second == pytest.approx(1000)
    assert plan.cost_per_hour == 18
    assert plan.cost_per_million_tokens == pytest.approx(18 / 3.6)
    drafting = plan.pools[1]
    assert drafting.requests_per_second == pytest.approx(20)
    assert drafting.busy_share == pytest.approx(0.5)
    assert plan.pools[0].requests_per_second == pytest.approx(0)


def test_a_latency_nobody_kept_is_refused() -> None:
    with pytest.raises(RequestError, match="latency_p95_s was 1 at best"):
        plan_fleet(FleetTarget(1, latency_p95_s=0.1), BOTH)


@pytest.mark.parametrize(
    "wrong",
    [{"requests_per_second": 0}, {"utilisation": 2}, {"spare": -1}, {"latency_p95_s": 0}],
)
def test_impossible_targets_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="It must be"):
        FleetTarget(**{"requests_per_second": 1.0, **wrong})


def test_a_load_of_both_modes_makes_two_pools(tmp_path: Path) -> None:
    plan = make_load_plan()
    log = make_log(plan, lambda mode, level, name: 1.0 if mode == "off" else 0.5)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(make_load_document(log, plan)))
    pools = list(read_pools(tmp_path))
    assert [pool.name for pool in pools] == [PLAIN, SPECULATIVE]
    rates = [pool.best(FleetTarget(1)).requests_per_second for pool in pools]
    assert rates[1] == pytest.approx(2 * rates[0])


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(RequestError, match="cannot be read"):
        list(read_pools(path))
    path.write_text('{"kind": "headlong-bench", "format": 1}')
    with pytest.raises(RequestError, match="holds no results of headlong bench load"):
        list(read_pools(path))
