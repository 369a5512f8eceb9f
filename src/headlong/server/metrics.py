"""Numbers for Prometheus: what the server did since it began, and what it does now.

In:  events of the routes (received, first token, tokens, finished) and of the middleware
     (answered, refused); at each scrape the engine's own snapshot.
Out: text in Prometheus' format, all names under `headlong:`; `docs/metrics.md` explains each.
Its own registry: two servers in one process do not mix.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import prometheus_client as prometheus
from prometheus_client import core
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headlong.decode.stats import DecodeStats
from headlong.engine.limits import EngineSnapshot
from headlong.fleet.replica import Replica
from headlong.provenance import own_version
from headlong.server.live import FinishedRequest
from headlong.server.replicas import ReplicaCollector

PREFIX = "headlong:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# A small model on a CPU takes milliseconds, a large one seconds; a long answer takes minutes.
_TTFT_S = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_GAP_S = (0.001, 0.002, 0.004, 0.006, 0.008, 0.012, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5)
_TOTAL_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

_KEPT_SHARE = 0.9
"""What the speed-up gauge keeps of older requests when one more ends."""

SnapshotSource = Callable[[], EngineSnapshot]

_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests_received": ("Requests that were run.", ("kind",)),
    "requests_finished": ("Requests that ended.", ("route", "mtp", "finish_reason")),
    "http_requests": ("HTTP answers.", ("route", "status")),
    "requests_refused": ("Requests turned away.", ("reason",)),
    "prompt_tokens": ("Prompt tokens of ended requests.", ()),
    "prompt_tokens_cached": ("Of these, found in the prefix cache.", ()),
    "decode_rounds": ("Rounds, with a draft or without.", ()),
    # In the names that dashboards for vLLM know.
    "spec_decode_num_drafts": ("Rounds that had a draft.", ()),
    "spec_decode_num_draft_tokens": ("Draft tokens.", ()),
    "spec_decode_num_accepted_tokens": ("Draft tokens that stood.", ()),
    "spec_decode_num_accepted_tokens_per_pos": (
        "Draft tokens that stood, by place in the draft, from 0.",
        ("position",),
    ),
    "drafter_draft_tokens": ("Draft tokens.", ("drafter",)),
    "drafter_accepted_tokens": ("Draft tokens that stood.", ("drafter",)),
}
"""By name: what is counted, and its labels."""

_GAUGES = (
    ("num_requests_running", "Requests that run.", "num_running"),
    ("num_requests_waiting", "Requests that wait.", "num_waiting"),
    ("num_requests_prefilling", "Of the running ones, in their prompt.", "num_prefilling"),
    ("batch_rows", "Rows of the last verify pass.", "last_rows"),
    ("kv_bytes", "Bytes of all caches.", "kv_bytes"),
    ("kv_limit_bytes", "Bytes they may take; +Inf without a limit.", "kv_limit_bytes"),
    ("prefix_bytes", "Bytes of kept prefixes.", "prefix_bytes"),
    ("prefix_entries", "Kept prefixes.", "prefix_entries"),
)
"""Name, what it is, field of the engine's snapshot."""

_ENGINE_COUNTERS = (
    ("prefix_lookup_tokens", "Prompt tokens looked for.", "prefix_lookup_tokens"),
    ("prefix_hit_tokens", "Prompt tokens found in prefixes.", "prefix_hit_tokens"),
    ("preemptions", "Requests set back for want of memory.", "num_preemptions"),
    ("engine_failures", "Requests ended by a fault of ours.", "num_failed"),
)


class Metrics:
    """All counters, histograms and gauges of one server."""

    def __init__(
        self, snapshot: SnapshotSource | None = None, replicas: Sequence[Replica] = ()
    ) -> None:
        """Set all to zero; `snapshot` and `replicas` are read at each scrape."""
        # Otherwise every counter is followed by an unwanted `_created` series.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left it untyped
        self._registry = registry = prometheus.CollectorRegistry()
        self._counters = {
            name: prometheus.Counter(f"{PREFIX}{name}", about, labels, registry=registry)
            for name, (about, labels) in _COUNTERS.items()
        }
        self._ttft, self._total = (
            prometheus.Histogram(
                f"{PREFIX}{name}_seconds", about, registry=registry, buckets=buckets
            )
            for name, about, buckets in (
                ("time_to_first_token", "Arrival to first token.", _TTFT_S),
                ("e2e_request_latency", "Arrival to end.", _TOTAL_S),
            )
        )
        about = "Tokens per second against plain decoding, over recent requests."
        self._speedup = prometheus.Gauge(f"{PREFIX}measured_speedup", about, registry=registry)
        self._speedup.set(math.nan)  # nothing measured yet
        self._gained, self._weight = 0.0, 0.0
        self._tokens = _TokenMetrics()
        registry.register(self._tokens)
        info = prometheus.Gauge(f"{PREFIX}build_info", "Always 1.", ["version"], registry=registry)
        info.labels(own_version()).set(1)
        if snapshot is not None:
            registry.register(_EngineCollector(snapshot))
        registry.register(ReplicaCollector(replicas, PREFIX))

    def request_received(self, kind: str) -> None:
        """Count a request that is about to run; `kind` names its protocol."""
        self._add("requests_received", 1, kind)

    def first_token(self, seconds: float) -> None:
        """Count the first token of an answer, so many seconds after its request came."""
        self._ttft.observe(seconds)
        self._tokens.num += 1

    def tokens(self, num: int, gap_s: float) -> None:
        """Count tokens that came together, so many seconds after the ones before them."""
        self._tokens.add(num, gap_s)

    def request_finished(self, record: FinishedRequest) -> None:
        """Count a request's end, however it ended."""
        self._add("requests_finished", 1, record.route, str(record.mtp), record.finish_reason)
        self._add("prompt_tokens", record.num_prompt_tokens)
        self._add("prompt_tokens_cached", record.num_cached_tokens)
        self._total.observe(record.total_s)
        if record.stats is not None:
            self._add_drafts(record.stats)
        speedup, num_tokens = record.report.get("measured_speedup"), record.num_completion_tokens
        if speedup is not None and record.mtp != "off" and num_tokens:
            self._gained = _KEPT_SHARE * self._gained + num_tokens * speedup
            self._weight = _KEPT_SHARE * self._weight + num_tokens
            self._speedup.set(self._gained / self._weight)

    def answered(self, route: str, status: int) -> None:
        """Count an HTTP answer; `route` is one of ours or "other", never a client's own text."""
        self._add("http_requests", 1, route, str(status))

    def refused(self, reason: str) -> None:
        """Count a request that was refused before it ran."""
        self._add("requests_refused", 1, reason)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return prometheus.generate_latest(self._registry)

    def _add(self, name: str, amount: int, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def _add_drafts(self, stats: DecodeStats) -> None:
        self._add("decode_rounds", stats.rounds)
        self._add("spec_decode_num_drafts", stats.rounds - stats.k_histogram.get(0, 0))
        self._add("spec_decode_num_draft_tokens", stats.num_drafted)
        self._add("spec_decode_num_accepted_tokens", stats.num_accepted)
        for position, num in enumerate(stats.accepted_at_depth):
            self._add("spec_decode_num_accepted_tokens_per_pos", num, str(position))
        for name, count in stats.by_drafter.items():
            self._add("drafter_draft_tokens", count.num_drafted, name)
            self._add("drafter_accepted_tokens", count.num_accepted, name)


class _TokenMetrics(Collector):
    """What is counted of tokens as they come; plain numbers, since it happens all the time."""

    def __init__(self) -> None:
        self.num = 0
        self._num_in = [0] * (len(_GAP_S) + 1)
        self._total_s = 0.0

    def add(self, num: int, gap_s: float) -> None:
        """Count `num` tokens that took `gap_s` together."""
        self.num += num
        self._num_in[bisect_left(_GAP_S, gap_s / num)] += num
        self._total_s += gap_s

    def collect(self) -> Iterator[core.Metric]:
        """Yield the counter and the histogram of this moment."""
        yield core.CounterMetricFamily(f"{PREFIX}generation_tokens", "Tokens generated.", self.num)
        bounds = [*map(floatToGoString, _GAP_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._num_in), strict=True))
        name, about = f"{PREFIX}inter_token_latency_seconds", "Time per further token."
        yield core.HistogramMetricFamily(name, about, buckets, self._total_s)


class _EngineCollector(Collector):
    """Reads the engine's snapshot at each scrape."""

    def __init__(self, snapshot: SnapshotSource) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[core.Metric]:
        """Yield gauges and counters of this moment."""
        now = self._snapshot()
        for name, about, field in _GAUGES:
            value = getattr(now, field)  # None: without a limit
            shown = math.inf if value is None else value
            yield core.GaugeMetricFamily(f"{PREFIX}{name}", about, value=shown)
        for name, about, field in _ENGINE_COUNTERS:
            yield core.CounterMetricFamily(f"{PREFIX}{name}", about, value=getattr(now, field))
