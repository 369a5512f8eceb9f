import json

from headlong.decode.stats import DecodeStats
from headlong.server.finished_requests import FinishedRequest, FinishedRequests


def record(number: int) -> FinishedRequest:
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
    records = FinishedRequests(max_records=3)
    for number in range(5):
        records.add(record(number))
    assert [one.id for one in records.latest()] == ["chatcmpl-4", "chatcmpl-3", "chatcmpl-2"]
    assert [one.id for one in records.latest(1)] == ["chatcmpl-4"]


def test_a_record_goes_into_json() -> None:
    shown = json.loads(json.dumps(record(7).to_dict()))
    assert shown["id"] == "chatcmpl-7"
    assert shown["report"] == {"mode": "auto", "rounds": 3}
    assert "stats" not in shown


def test_200_are_kept() -> None:
    records = FinishedRequests()
    for number in range(250):
        records.add(record(number))
    assert len(records.latest(300)) == 200
