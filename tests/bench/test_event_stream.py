"""Event streams: what counts as a piece of an answer, and what is no stream at all."""

import json
from typing import Any

import pytest

from headlong.bench.event_stream import EventReader, read_error, read_finish_reason, read_piece
from headlong.errors import RequestError


def read_events(lines: list[str], ending: str = "\n") -> list[dict[str, Any]]:
    """Read lines that come one at a time; the last has no end."""
    reader = EventReader()
    pieces = ending.join(lines).encode().splitlines(keepends=True)
    return [event for piece in pieces for event in reader.feed(piece)] + list(reader.end())


def test_events_end_where_the_stream_says_so() -> None:
    lines = [": hello", "", 'data: {"a": 1}', "event: x", "id: 4", "data: [DONE]", "garbage"]
    assert read_events(lines) == [{"a": 1}]


def test_lines_may_end_as_windows_has_them() -> None:
    assert read_events(['data: {"a": 1}', "", "data: [DONE]"], "\r\n") == [{"a": 1}]


def test_text_with_line_separators_stays_whole() -> None:
    """httpx cuts lines at U+2028 and U+0085, which JSON leaves as they are inside a text."""
    event = {"text": "one\u2028two\x85three\u2029four"}
    assert read_events([f"data: {json.dumps(event, ensure_ascii=False)}"]) == [event]


def test_letters_cut_between_pieces_are_whole() -> None:
    data = 'data: {"a": "ä€"}\n'.encode()
    reader = EventReader()
    found = [event for i in range(len(data)) for event in reader.feed(data[i : i + 1])]
    assert found == [{"a": "ä€"}]


def test_space_after_the_colon_is_optional() -> None:
    assert read_events(['data:{"a":1}']) == [{"a": 1}]


@pytest.mark.parametrize("line", ["<html>", "data: {half", "data: [1]", '{"a": 1}'])
def test_what_is_no_event_is_shown(line: str) -> None:
    with pytest.raises(RequestError, match="did not send an event stream but"):
        read_events([line])


def test_error_events_break_off() -> None:
    with pytest.raises(RequestError, match="The server broke off: no memory"):
        read_events(['data: {"error": {"message": "no memory"}}'])


def test_pieces_are_content_reasoning_calls_and_plain_text() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    assert read_piece({"choices": [{"delta": {"content": "a"}}]}) == "a"
    assert read_piece({"choices": [{"delta": {"reasoning_content": "hm"}}]}) == "hm"
    assert read_piece({"choices": [{"delta": {"tool_calls": [call]}}]}) == "f{}"
    assert read_piece({"choices": [{"text": "b"}]}) == "b"
    assert read_piece({"choices": [{"delta": {"role": "assistant", "content": None}}]}) == ""
    assert read_piece({"choices": [], "usage": {}}) == ""


def test_finish_reason_is_the_first_that_is_given() -> None:
    assert read_finish_reason({"choices": [{"finish_reason": "stop"}]}) == "stop"
    assert read_finish_reason({"choices": [{"finish_reason": None}]}) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "m", "code": 3}}, "m"),
        ({"error": "plain"}, "plain"),
        ({"detail": "d"}, "d"),
        ({"message": "x"}, "x"),
        (["list"], "['list']"),
    ],
)
def test_errors_of_all_forms_are_read(body: object, words: str) -> None:
    assert read_error(body) == words
