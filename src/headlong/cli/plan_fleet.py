"""`headlong plan --fleet`: replicas of a plain and a speculative pool, from measured loads.

In:  results of `headlong bench load`, a target. Out: a table, sentences, one document.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from headlong.bench.fleet_capacity import (
    PLAIN,
    SPECULATIVE,
    FleetPlan,
    FleetTarget,
    MeasuredPool,
    PoolPlan,
    plan_fleet,
    read_pools,
)
from headlong.cli.output import make_console, printable, write_json
from headlong.errors import RequestError
from headlong.provenance import read_provenance


def run_fleet(args: argparse.Namespace) -> int:
    """Plan a fleet and print it."""
    target = _read_target(args)
    pools = _read_pools(args)
    best = plan_fleet(target, pools, args.cost_per_hour)
    plain = plan_fleet(target, pools[:1], args.cost_per_hour)
    words = [_say(target, best, plain), *_say_limits(target, pools)]
    console = make_console(stderr=args.json)
    console.print(f"{target.words}; {target.spare} may be down.", soft_wrap=True)
    console.print(_make_table(best, plain))
    for sentence in words:
        console.print(printable(sentence), soft_wrap=True)
    if args.json:
        fleets = {"best": best.to_dict(), "plain_only": plain.to_dict()}
        document = {"target": asdict(target), "fleet": fleets, "words": words}
        write_json({**document, "provenance": read_provenance().to_dict()})
    return 0


def _read_target(args: argparse.Namespace) -> FleetTarget:
    if args.requests_per_second is None:
        problem = "--fleet was given without a load."
        raise RequestError(problem, "Say how much it has to carry: --requests-per-second 20.")
    return FleetTarget(
        args.requests_per_second,
        args.latency_p95,
        args.ttft_p95,
        args.gap_p95,
        args.utilisation,
        args.spare,
    )


def _read_pools(args: argparse.Namespace) -> list[MeasuredPool]:
    """Return the plain pool and, where one was measured, the speculative one."""
    files: Sequence[Any] = args.fleet
    if len(files) > 2:
        raise RequestError(f"--fleet names {len(files)} files.", "Give one or two.")
    pools = list(read_pools(files[0]))
    if len(files) == 2:
        drafting = [pool for pool in read_pools(files[1]) if pool.name == SPECULATIVE]
        # Another engine's replica is measured with --plain: what it does, it does for everybody.
        pools = pools[:1] + (drafting or [_as_speculative(one) for one in read_pools(files[1])])
    if pools[0].name != PLAIN:
        problem = f"{pools[0].source} is no plain replica."
        raise RequestError(problem, "Name the plain replica's results first.")
    return pools[:2]


def _as_speculative(pool: MeasuredPool) -> MeasuredPool:
    return MeasuredPool(SPECULATIVE, pool.levels, pool.source)


def _say(target: FleetTarget, best: FleetPlan, plain: FleetPlan) -> str:
    drafting = sum(pool.replicas for pool in best.pools[1:])
    text = f"{target.requests_per_second:g} requests a second need {_replicas(best.pools[0])}"
    if drafting:
        text += f" and {_replicas(best.pools[1])}, against {plain.replicas} without drafts"
    if best.cost_per_hour is None or best.cost_per_million_tokens is None:
        return f"{text}."
    text += f"; that is {best.cost_per_hour:,.2f} an hour"
    return f"{text} and {best.cost_per_million_tokens:,.2f} for a million tokens."


def _say_limits(target: FleetTarget, pools: Sequence[MeasuredPool]) -> list[str]:
    """Say where a replica may carry more than was measured, and where drafts cost capacity."""
    carried = [pool.best(target) for pool in pools]
    words = [
        f"{pool.source}: {one.level} was the most that was measured; it may carry more."
        for pool, one in zip(pools, carried, strict=True)
        if one.is_last
    ]
    if len(carried) == 2 and carried[1].requests_per_second < carried[0].requests_per_second:
        words.append("Within this target a plain replica carries more: drafts cost capacity here.")
    return words


def _replicas(pool: PoolPlan) -> str:
    return f"{pool.replicas} {pool.name} replica{'' if pool.replicas == 1 else 's'}"


def _make_table(best: FleetPlan, plain: FleetPlan) -> Table:
    """Return both fleets, pool by pool."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("fleet", "pool", "replicas", "requests/s", "busy", "at", "latency p95"):
        table.add_column(name, justify="left" if name in ("fleet", "pool", "at") else "right")
    fleets = {"with drafts": best, "without": plain}
    for name, fleet in fleets.items():
        for pool in fleet.pools:
            latency = pool.measured["latency_p95_s"]
            table.add_row(
                name,
                pool.name,
                f"{pool.replicas}",
                f"{pool.requests_per_second:.2f}",
                f"{pool.busy_share:.0%}",
                pool.level,
                "" if latency is None else f"{latency:.2f} s",
            )
    return table
