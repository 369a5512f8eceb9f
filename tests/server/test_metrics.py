import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headlong.decode.stats import DecodeStats
from headlong.engine.limits import EngineSnapshot
from headlong.server.live import FinishedRequest
from headlong.server.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

SNAPSHOT = EngineSnapshot(
    num_running=3,
    num_waiting=2,
    num_prefilling=1,
    last_rows=17,
    kv_bytes=1000,
    kv_limit_bytes=None,
    prefix_bytes=400,
    prefix_entries=5,
    prefix_hit_tokens=60,
    prefix_lookup_tokens=90,
    num_preemptions=4,
    num_finished=8,
    num_failed=1,
)


def record(mtp: int | str = "auto", speedup: float | None = None, num: int = 10) -> FinishedRequest:
    """Return the record of a request with two rounds: 3 drafted and 2 stood, then none drafted."""
    stats = DecodeStats()
    stats.observe_round(["head", "head", "ngram"], 2)
    stats.observe_round([], 0)
    return FinishedRequest(
        id="chatcmpl-1",
        created_s=0.0,
        route="/v1/chat/completions",
        mtp=mtp,  # type: ignore[arg-type]  # a Literal, which a parameter list does not keep
        num_prompt_tokens=100,
        num_completion_tokens=num,
        finish_reason="stop",
        total_s=0.7,
        num_cached_tokens=64,
        report={"measured_speedup": speedup},
        stats=stats,
    )


def values(metrics: Metrics) -> dict[str, float]:
    """Return every sample as name{labels} → value."""
    text = metrics.render().decode()
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items()): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_lists_exactly_what_is_exported() -> None:
    listed = re.findall(r"^\| `(headlong:[a-z_0-9]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    text = Metrics(lambda: SNAPSHOT).render().decode()
    exported = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(exported)


def test_drafts_are_counted_under_the_names_dashboards_know() -> None:
    metrics = Metrics()
    metrics.request_finished(record())
    metrics.request_finished(record())
    seen = values(metrics)
    assert seen["headlong:spec_decode_num_drafts_total"] == 2
    assert seen["headlong:decode_rounds_total"] == 4
    assert seen["headlong:spec_decode_num_draft_tokens_total"] == 6
    assert seen["headlong:spec_decode_num_accepted_tokens_total"] == 4
    by_position = [
        seen[f"headlong:spec_decode_num_accepted_tokens_per_pos_total{{position={place}}}"]
        for place in range(3)
    ]
    assert by_position == [2, 2, 0]
    assert seen["headlong:drafter_draft_tokens_total{drafter=ngram}"] == 2
    assert seen["headlong:drafter_accepted_tokens_total{drafter=head}"] == 4


def test_requests_are_counted_by_how_they_ended() -> None:
    metrics = Metrics()
    metrics.request_received("chat")
    metrics.request_finished(record(mtp=4))
    seen = values(metrics)
    assert seen["headlong:requests_received_total{kind=chat}"] == 1
    ended = "{finish_reason=stop}{mtp=4}{route=/v1/chat/completions}"
    assert seen[f"headlong:requests_finished_total{ended}"] == 1
    assert seen["headlong:prompt_tokens_total"] == 100
    assert seen["headlong:prompt_tokens_cached_total"] == 64
    assert seen["headlong:e2e_request_latency_seconds_sum"] == pytest.approx(0.7)


def test_tokens_of_one_round_share_its_time() -> None:
    metrics = Metrics()
    metrics.first_token(0.5)
    metrics.tokens(4, 0.02)
    seen = values(metrics)
    assert seen["headlong:generation_tokens_total"] == 5
    assert seen["headlong:time_to_first_token_seconds_count"] == 1
    assert seen["headlong:inter_token_latency_seconds_count"] == 4
    assert seen["headlong:inter_token_latency_seconds_bucket{le=0.006}"] == 4
    assert seen["headlong:inter_token_latency_seconds_bucket{le=0.004}"] == 0


def test_the_engine_is_asked_at_every_scrape() -> None:
    moments = iter([SNAPSHOT, replace(SNAPSHOT, kv_limit_bytes=5000)])
    metrics = Metrics(lambda: next(moments))
    first, second = values(metrics), values(metrics)
    assert first["headlong:num_requests_running"] == 3
    assert first["headlong:num_requests_waiting"] == 2
    assert first["headlong:batch_rows"] == 17
    assert first["headlong:preemptions_total"] == 4
    assert first["headlong:prefix_hit_tokens_total"] == 60
    assert first["headlong:kv_limit_bytes"] == math.inf
    assert second["headlong:kv_limit_bytes"] == 5000


def test_the_speedup_is_that_of_recent_requests_by_tokens() -> None:
    metrics = Metrics()
    assert math.isnan(values(metrics)["headlong:measured_speedup"])
    metrics.request_finished(record(speedup=2.0, num=100))
    assert values(metrics)["headlong:measured_speedup"] == 2.0
    metrics.request_finished(record(mtp="off", speedup=1.0, num=100))
    metrics.request_finished(record(speedup=None))
    assert values(metrics)["headlong:measured_speedup"] == 2.0
    metrics.request_finished(record(speedup=1.0, num=10))
    assert values(metrics)["headlong:measured_speedup"] == pytest.approx(190 / 100)


def test_two_servers_in_one_process_do_not_mix() -> None:
    first, second = Metrics(), Metrics()
    first.tokens(3, 0.1)
    assert values(second)["headlong:generation_tokens_total"] == 0
