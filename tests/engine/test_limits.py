"""Limits: which there can be, who is refused by them, and when to come again."""

import time
from typing import Any

import pytest

from headlong.engine.limits import MAX_RETRY_S, EngineLimits, QueueLimit
from headlong.errors import BusyError, RequestError

LIMIT = EngineLimits(max_running=1, max_waiting=2)


def retry_after_s(limit: QueueLimit) -> float:
    """Return what one request too many is told."""
    with pytest.raises(BusyError) as caught:
        limit.check(3)
    return caught.value.retry_after_s


def test_one_request_too_many_is_refused_with_all_numbers() -> None:
    limit = QueueLimit(LIMIT)
    limit.check(2)
    with pytest.raises(BusyError, match=r"3 requests .* 1 that run and 2 that wait"):
        limit.check(3)
    assert retry_after_s(limit) == 1


def test_retry_follows_how_often_requests_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    limit = QueueLimit(LIMIT)
    limit.observe_begin()
    for num_left in range(30, 10, -1):
        now_s += 8.0
        limit.observe_end(num_left)
    assert retry_after_s(limit) == pytest.approx(8.0, rel=0.05)
    for num_left in range(10, 0, -1):
        now_s += 1000.0
        limit.observe_end(num_left)
    assert retry_after_s(limit) == MAX_RETRY_S


def test_idle_time_is_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    limit = QueueLimit(LIMIT)
    for _ in range(5):
        limit.observe_begin()
        now_s += 3.0
        limit.observe_end(0)
        now_s += 500.0
    assert retry_after_s(limit) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_running": 0},
        {"max_waiting": -1},
        {"kv_bytes": 0},
        {"rows_per_step": 0},
        {"prefill_rows_per_step": 0},
        {"prefix_bytes": -1},
    ],
)
def test_impossible_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        EngineLimits(**wrong)
