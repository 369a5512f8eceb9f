"""Fleet capacity: how many replicas in which pool, and what a million tokens cost.

In:  what `headlong bench load` measured at one replica of each pool, a target of load and latency.
Out: `FleetPlan`, arithmetic on measured levels alone: a replica is taken to carry what the busiest
level carried that kept the latency, and nothing is read between levels or beyond them.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headlong.bench.load_summary import KIND
from headlong.bench.measure import FORMAT
from headlong.bench.report_folder import RESULTS
from headlong.errors import RequestError

PLAIN, SPECULATIVE = "plain", "speculative"
MAX_RATE = 100_000.0
_PLAIN_MODES = ("off", "plain")

_MEASURES = {
    "latency_p95_s": "95 % of answers within {:g} s",
    "ttft_p95_ms": "95 % of first tokens within {:g} ms",
    "gap_p95_ms": "95 % of gaps between tokens within {:g} ms",
}


@dataclass(frozen=True, slots=True)
class FleetTarget:
    """What a fleet has to do."""

    requests_per_second: float
    latency_p95_s: float | None = None
    ttft_p95_ms: float | None = None
    gap_p95_ms: float | None = None
    utilisation: float = 0.7
    """Share of a replica's measured rate that is planned for; the rest is room for bursts."""
    spare: int = 1
    """So many replicas may be down, and the others still do it."""

    def __post_init__(self) -> None:
        rate = self.requests_per_second
        _require(0 < rate <= MAX_RATE, "requests_per_second", rate, f"above 0, at most {MAX_RATE}")
        for name in _MEASURES:
            value = getattr(self, name)
            _require(value is None or 0 < value < math.inf, name, value, "above 0")
        is_share = 0 < self.utilisation <= 1
        _require(is_share, "utilisation", self.utilisation, "above 0 and at most 1")
        _require(0 <= self.spare <= 100, "spare", self.spare, "from 0 to 100")

    @property
    def limits(self) -> Mapping[str, float]:
        """The latencies that are bounded."""
        values = {name: getattr(self, name) for name in _MEASURES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def words(self) -> str:
        """The target, for people."""
        limits = [_MEASURES[name].format(value) for name, value in self.limits.items()]
        return ", ".join([f"{self.requests_per_second:g} requests a second", *limits])


@dataclass(frozen=True, slots=True)
class MeasuredPool:
    """One replica of a pool under load, level by level."""

    name: str
    levels: Sequence[tuple[str, Mapping[str, Any]]]
    """Names of levels and what was measured there, in the order of the file."""
    source: str

    def best(self, target: FleetTarget) -> "ReplicaCapacity":
        """Return the highest level that meets the latency limits.

        Raises:
            RequestError: None does.
        """
        kept = [
            ReplicaCapacity(name, figures, is_last=name == self.levels[-1][0])
            for name, figures in self.levels
            if _keeps(figures, target.limits)
        ]
        if not kept:
            nearest = "; ".join(_tell(self.levels, name) for name in target.limits)
            raise RequestError(
                f"No measured level of {self.source} keeps the target ({nearest or 'no answers'}).",
                "Allow more, or measure fewer at once: headlong bench load --concurrency 1,2.",
            )
        return max(kept, key=lambda one: one.requests_per_second)


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """The best measured level of one replica that meets the target."""

    level: str
    figures: Mapping[str, Any]
    is_last: bool
    """Whether it was the highest measured level: a replica may have more capacity."""

    @property
    def requests_per_second(self) -> float:
        """Answers finished in a second."""
        return float(self.figures["requests_per_second"])

    @property
    def tokens_per_request(self) -> float:
        """Mean tokens of an answer."""
        return float(self.figures["tokens_per_second"]) / self.requests_per_second


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool of a plan."""

    name: str
    replicas: int
    requests_per_second: float
    """Its share of the load."""
    busy_share: float
    """Of the rate that was measured."""
    level: str
    measured: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The cheapest fleet that does what is asked."""

    pools: Sequence[PoolPlan]
    tokens_per_second: float
    cost_per_hour: float | None
    cost_per_million_tokens: float | None

    @property
    def replicas(self) -> int:
        """Of all pools together."""
        return sum(pool.replicas for pool in self.pools)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self) | {"replicas": self.replicas}


def plan_fleet(
    target: FleetTarget, pools: Sequence[MeasuredPool], cost_per_hour: float | None = None
) -> FleetPlan:
    """Return the fleet of fewest replicas, the first pool plain; equals draft more.

    There is always a plain replica: requests that drafts cannot serve, or must not, go there.
    """
    if cost_per_hour is not None:
        _require(0 <= cost_per_hour < math.inf, "cost_per_hour", cost_per_hour, "0 or more")
    carried = [pool.best(target) for pool in pools]
    rates = [one.requests_per_second for one in carried]
    counts = min(_enough(target, rates), key=lambda one: (sum(one), one[0]))
    # Whatever drafts is filled first; what is left goes to the plain pool.
    room = [n * rate for n, rate in zip(counts, rates, strict=True)]
    drafted = min(target.requests_per_second, sum(room[1:]) * target.utilisation)
    shares = [target.requests_per_second - drafted, drafted][: len(pools)]
    planned = [
        PoolPlan(pool.name, n, share, share / have if have else 0.0, one.level, one.figures)
        for pool, n, share, have, one in zip(pools, counts, shares, room, carried, strict=True)
    ]
    tokens = sum(share * one.tokens_per_request for share, one in zip(shares, carried, strict=True))
    cost = None if cost_per_hour is None else sum(counts) * cost_per_hour
    per_million = None if cost is None else cost / (tokens * 3600) * 1e6
    return FleetPlan(planned, tokens, cost, per_million)


def read_pools(path: Path) -> Iterator[MeasuredPool]:
    """Yield what a load measured: one pool for a single mode, both for `off` and another."""
    path = path / RESULTS if path.is_dir() else path
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        problem = f"The results {path} cannot be read: {error}."
        raise RequestError(problem, "Name a results.json of headlong bench load.") from error
    is_ours = isinstance(document, dict) and document.get("kind") == KIND
    if not is_ours or document.get("format") != FORMAT:
        problem = f"{path} holds no results of headlong bench load in format {FORMAT}."
        raise RequestError(problem, "Name a results.json that this version wrote.")
    for mode in document["modes"]:
        levels = [(level["name"], level["modes"].get(mode)) for level in document["levels"]]
        done = [(name, figures) for name, figures in levels if figures and _is_whole(figures)]
        if not done:
            problem = f"{path} has no level at which {mode} answered every request."
            raise RequestError(problem, "Measure again with less at once.")
        name = PLAIN if mode in _PLAIN_MODES else SPECULATIVE
        yield MeasuredPool(name, done, f"{path.name}, mtp {mode}")


def _enough(target: FleetTarget, rates: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Yield numbers of replicas, plain ones first, that carry the load with some of them down."""
    needed = target.requests_per_second / target.utilisation
    if len(rates) == 1:
        yield (math.ceil(needed / rates[0] - 1e-9) + target.spare,)
        return
    plain, drafting = rates
    most = math.ceil((needed + target.spare * max(rates)) / drafting) + 1
    for num_drafting in range(most + 1):
        lost = target.spare * (max(rates) if num_drafting else plain)
        left = needed + lost - num_drafting * drafting
        yield (max(1, math.ceil(left / plain - 1e-9)), num_drafting)


def _is_whole(figures: Mapping[str, Any]) -> bool:
    troubles = ("num_busy", "num_empty", "num_failed")
    rates = ("requests_per_second", "tokens_per_second")
    return not any(figures[name] for name in troubles) and all(figures[name] for name in rates)


def _keeps(figures: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    return all(
        figures[name] is not None and figures[name] <= limit for name, limit in limits.items()
    )


def _tell(levels: Sequence[tuple[str, Mapping[str, Any]]], measure: str) -> str:
    told = [figures[measure] for _, figures in levels if figures[measure] is not None]
    return f"{measure} was {min(told, default=math.nan):.3g} at best"


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise RequestError(f"{name} is {value}.", f"It must be {allowed}.")
