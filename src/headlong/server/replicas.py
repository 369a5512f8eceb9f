"""The status of replicas, for `/health`, the page and Prometheus.

In:  the records of a fleet; none for a model in this process. Out: plain records and samples.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import core
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field

from headlong.fleet.replica import Replica, ReplicaState


class ReplicaStatus(BaseModel):
    """One engine in another process."""

    pool: str = Field(description='"plain", or "K=4" where 4 tokens are drafted.')
    engine: str = Field(description="What kind it is: vllm, llama.cpp, …")
    state: ReplicaState
    takes_requests: bool
    num_in_flight: int
    name: str | None = Field(None, description="Its address; hidden where API keys are in use.")
    problem: str | None = Field(None, description="What is wrong, or missing yet; hidden likewise.")
    refused: list[str] = Field(
        default_factory=list, description="What its drafts are not trusted with, and why."
    )


def status_of(replica: Replica, *, is_open: bool = True) -> ReplicaStatus:
    """Return how a replica is; addresses and problems, which may hold some, only if `is_open`."""
    verdict = replica.verdict
    kept = () if verdict is None else verdict.refused
    refused = [f"{one.aspect}: {one.seen}" if is_open else str(one.aspect) for one in kept]
    return ReplicaStatus(
        pool=_pool(replica),
        engine=replica.dialect.name,
        state=replica.state,
        takes_requests=replica.is_usable,
        num_in_flight=replica.num_in_flight,
        name=replica.name if is_open else None,
        problem=(replica.problem or replica.obstacle) if is_open else None,
        refused=refused,
    )


def nobody_up(replicas: Sequence[Replica]) -> str | None:
    """Say so where there are replicas and none takes requests."""
    if not replicas or any(one.is_usable for one in replicas):
        return None
    return f"None of the {len(replicas)} replicas takes requests."


def describe(replica: Replica) -> dict[str, Any]:
    """Return a replica for the page's card."""
    words = [replica.dialect.name, _pool(replica), str(replica.state)]
    words.append(f"{replica.num_in_flight} in flight, {replica.num_answered} answered")
    if replica.num_failed:
        words.append(f"{replica.num_failed} failed")
    status = status_of(replica)
    wrong = [] if status.problem is None else [status.problem]
    wrong += [f"Not trusted with {refused}" for refused in status.refused]
    return {
        "name": replica.name,
        "words": " · ".join(words),
        "wrong": " ".join(wrong),
    }


_LABELS = ("replica", "engine", "pool")

_GAUGES: tuple[tuple[str, str, Callable[[Replica], float | None]], ...] = (
    ("replica_up", "1 while it takes requests.", lambda one: float(one.is_usable)),
    ("replica_in_flight", "Requests it has.", lambda one: one.num_in_flight),
    ("replica_running", "Requests it runs, as it says.", lambda one: one.load.num_running),
    ("replica_waiting", "Requests that wait there.", lambda one: one.load.num_waiting),
    (
        "replica_probe_failures",
        "Kinds of requests that its drafts are not trusted with.",
        lambda one: None if one.verdict is None else len(one.verdict.refused),
    ),
    ("replica_kv_share", "Share of its cache in use.", lambda one: one.load.kv_share),
)

_COUNTERS: tuple[tuple[str, str, Callable[[Replica], float | None]], ...] = (
    ("replica_answers", "Requests it answered.", lambda one: one.num_answered),
    ("replica_failures", "Requests and calls it failed.", lambda one: one.num_failed),
    ("replica_draft_tokens", "Its draft tokens.", lambda one: one.load.num_drafted),
    ("replica_accepted_tokens", "Those that stood.", lambda one: one.load.num_accepted),
)


class ReplicaCollector(Collector):
    """Reads the records at each scrape."""

    def __init__(self, replicas: Sequence[Replica], prefix: str) -> None:
        """Publish under names that begin with `prefix`."""
        self._replicas = replicas
        self._prefix = prefix

    def collect(self) -> Iterator[core.Metric]:
        """Yield gauges and counters of this moment; what an engine does not say is left out."""
        for name, about, read in _GAUGES:
            yield self._fill(
                core.GaugeMetricFamily(self._prefix + name, about, labels=_LABELS), read
            )
        for name, about, read in _COUNTERS:
            family = core.CounterMetricFamily(self._prefix + name, about, labels=_LABELS)
            yield self._fill(family, read)

    def _fill(
        self,
        family: core.GaugeMetricFamily | core.CounterMetricFamily,
        read: Callable[[Replica], float | None],
    ) -> core.Metric:
        for one in self._replicas:
            value = read(one)
            if value is not None:
                family.add_metric([one.name, one.dialect.name, _pool(one)], value)
        return family


def _pool(replica: Replica) -> str:
    return f"K={replica.num_draft_tokens}" if replica.drafts else "plain"
