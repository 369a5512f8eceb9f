"""Server-sent events: valid JSON after `data: `, one event per choice, shared head."""

import json
from typing import Any

from headlong.server.answer_format import to_json
from headlong.server.openai_format import EventWriter

HEAD = {"id": "x-1", "model": "café \u2028"}


def read(data: bytes) -> list[dict[str, Any]]:
    """Take a stream of events apart."""
    events = data.decode().split("\n\n")
    assert events[-1] == "", "a stream ends with an empty line"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def test_every_choice_is_an_event_of_its_own() -> None:
    written = EventWriter(HEAD, wants_usage=False).chunks(
        [{"index": 0}, {"index": 1, "t": "“é”\n"}]
    )
    assert read(written) == [
        {**HEAD, "choices": [{"index": 0}]},
        {**HEAD, "choices": [{"index": 1, "t": "“é”\n"}]},
    ]


def test_no_choices_write_nothing() -> None:
    assert EventWriter(HEAD, wants_usage=True).chunks([]) == b""


def test_usage_is_null_until_the_last_event() -> None:
    writer = EventWriter(HEAD, wants_usage=True)
    first, last = read(writer.chunks([{"index": 0}]) + writer.last([], {"usage": {"n": 3}}))
    assert first["usage"] is None
    assert last == {**HEAD, "choices": [], "usage": {"n": 3}}


def test_last_event_carries_choices_and_more() -> None:
    event = read(EventWriter(HEAD, wants_usage=False).last([{"index": 0}], {"mtp": {"rounds": 2}}))
    assert event == [{**HEAD, "choices": [{"index": 0}], "mtp": {"rounds": 2}}]


def test_half_a_surrogate_pair_does_not_break_the_answer() -> None:
    assert json.loads(to_json({"text": "a\ud800b"})) == {"text": "a?b"}
