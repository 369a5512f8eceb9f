"""The last two minutes as the page sees them: counted from tokens, closed second by second."""

import json
from collections.abc import Sequence

import pytest

from headlong.config import MtpMode
from headlong.decode.stats import DecodeStats
from headlong.engine.limits import EngineSnapshot
from headlong.generation import Chunk
from headlong.server.live import SPEEDUP_SPAN_S, WINDOW_S, FinishedRequest, Live


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def snapshot() -> EngineSnapshot:
    """An engine with two streams and one in the queue."""
    return EngineSnapshot(
        num_running=2,
        num_waiting=1,
        num_prefilling=0,
        last_rows=7,
        kv_bytes=1000,
        kv_limit_bytes=None,
        prefix_bytes=0,
        prefix_entries=0,
        prefix_hit_tokens=30,
        prefix_lookup_tokens=90,
        num_preemptions=0,
        num_finished=0,
        num_failed=0,
    )


def chunks(*depths: int) -> list[Chunk]:
    """Tokens of these depths."""
    return [Chunk("x", (1,), d > 0, "head" if d else "backbone", d) for d in depths]


def record(speedup: float | None, num_tokens: int, mtp: MtpMode = "auto") -> FinishedRequest:
    """A request that ended with this gain."""
    return FinishedRequest(
        id="r",
        created_s=0.0,
        route="/v1/chat/completions",
        mtp=mtp,
        num_prompt_tokens=5,
        num_completion_tokens=num_tokens,
        finish_reason="stop",
        total_s=1.0,
        report={"measured_speedup": speedup},
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> Live:
    return Live(snapshot, clock)


def pass_seconds(live: Live, clock: Clock, number: int) -> None:
    for _ in range(number):
        clock.now_s += 1.0
        live.tick()


def test_rate_is_tokens_over_measured_time(live: Live, clock: Clock) -> None:
    live.count_chunks(chunks(0, *[0] * 29), is_first=True)
    clock.now_s += 1.5  # a busy event loop ticks late
    live.tick()
    assert live.report()["now"]["tokens_per_second"] == 20.0
    pass_seconds(live, clock, 1)
    assert live.report()["now"]["tokens_per_second"] == 0.0
    assert [one["tokens_per_second"] for one in live.report()["samples"]] == [20.0, 0.0]


@pytest.mark.parametrize(
    ("arrivals", "rounds", "shares"),
    [
        ([[0, 0, 0]], 2, []),
        ([[0], [1, 2, 0], [0], [1, 0]], 3, [2 / 3, 1 / 3]),
        ([[0], [1, 2, 0, 0, 1, 0]], 3, [2 / 3, 1 / 3]),  # a slow reader gets several rounds at once
        ([[0], [1, 2, 3]], 1, [1.0, 1.0, 1.0]),  # cut at its end, so without the model's own token
    ],
)
def test_rounds_are_read_off_their_tokens(
    live: Live, arrivals: Sequence[Sequence[int]], rounds: int, shares: Sequence[float]
) -> None:
    for number, depths in enumerate(arrivals):
        live.count_chunks(chunks(*depths), is_first=number == 0)
    recent = live.report()["recent"]
    assert recent["rounds"] == rounds
    assert recent["acceptance_at_depth"] == pytest.approx(shares, abs=1e-4)
    assert recent["acceptance_length"] == pytest.approx(1 + sum(shares), abs=1e-4)


def test_speedup_is_weighed_by_tokens_and_forgotten(live: Live, clock: Clock) -> None:
    live.request_finished(record(2.0, 300))
    live.request_finished(record(1.0, 100))
    live.request_finished(record(9.0, 100, mtp="off"))
    live.request_finished(record(None, 100))
    pass_seconds(live, clock, SPEEDUP_SPAN_S + 1)
    points = [one["speedup"] for one in live.report()["samples"]]
    assert points == [1.75] * SPEEDUP_SPAN_S + [None]
    assert live.report()["recent"]["speedup"] == 1.75
    pass_seconds(live, clock, WINDOW_S)
    assert live.report()["recent"]["speedup"] is None


def test_past_is_bounded_and_oldest_first(live: Live, clock: Clock) -> None:
    pass_seconds(live, clock, WINDOW_S + 30)
    ages = [one["age_s"] for one in live.report()["samples"]]
    assert len(ages) == WINDOW_S
    assert ages == sorted(ages, reverse=True)
    assert ages[-1] == 0


def test_idle_seconds_show_no_rows(live: Live, clock: Clock) -> None:
    """The engine's snapshot keeps the rows of its last pass, however long ago that was."""
    live.count_chunks(chunks(0), is_first=True)
    pass_seconds(live, clock, 2)
    assert [one["rows"] for one in live.report()["samples"]] == [7, 0]
    assert live.report()["now"]["running"] == 2
    assert live.report()["now"]["waiting"] == 1


def test_totals_count_since_the_start(live: Live, clock: Clock) -> None:
    live.count_chunks(chunks(0, 0), is_first=True)
    live.request_finished(record(None, 2))
    pass_seconds(live, clock, WINDOW_S + 1)
    totals = live.report()["totals"]
    assert (totals["requests"], totals["tokens"], totals["failed"]) == (1, 2, 0)
    assert (totals["prefix_hit_tokens"], totals["prefix_lookup_tokens"]) == (30, 90)
    assert live.report()["uptime_s"] == WINDOW_S + 1


def numbered_record(number: int) -> FinishedRequest:
    """Return a record that can be told from others."""
    return FinishedRequest(
        id=f"chatcmpl-{number}",
        created_s=1.7e9 + number,
        route="/v1/chat/completions",
        mtp="auto",
        num_prompt_tokens=number,
        num_completion_tokens=5,
        finish_reason="stop",
        total_s=0.25,
        report={"mode": "auto", "rounds": 3},
        stats=DecodeStats(),
    )


def test_the_newest_come_first_and_the_oldest_go() -> None:
    records = Live(snapshot, max_records=3)
    for number in range(5):
        records.request_finished(numbered_record(number))
    assert [one.id for one in records.latest()] == ["chatcmpl-4", "chatcmpl-3", "chatcmpl-2"]
    assert [one.id for one in records.latest(1)] == ["chatcmpl-4"]


def test_a_record_goes_into_json() -> None:
    shown = json.loads(json.dumps(numbered_record(7).to_dict()))
    assert shown["id"] == "chatcmpl-7"
    assert shown["report"] == {"mode": "auto", "rounds": 3}
    assert "stats" not in shown


def test_200_are_kept() -> None:
    records = Live(snapshot)
    for number in range(250):
        records.request_finished(numbered_record(number))
    assert len(records.latest(300)) == 200
