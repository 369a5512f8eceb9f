"""Event streams: what counts as a piece of an answer, and what is no stream at all."""

import pytest

from headlong.bench.event_stream import read_error, read_events, read_finish_reason, read_piece
from headlong.errors import RequestError


def test_events_end_where_the_stream_says_so() -> None:
    lines = [": hello", "", 'data: {"a": 1}', "event: x", "id: 4", "data: [DONE]", "garbage"]
    assert list(read_events(lines)) == [{"a": 1}]


def test_space_after_the_colon_is_optional() -> None:
    assert list(read_events(['data:{"a":1}'])) == [{"a": 1}]


@pytest.mark.parametrize("line", ["<html>", "data: {half", "data: [1]", '{"a": 1}'])
def test_what_is_no_event_is_shown(line: str) -> None:
    with pytest.raises(RequestError, match="did not send an event stream but"):
        list(read_events([line]))


def test_error_events_break_off() -> None:
    with pytest.raises(RequestError, match="The server broke off: no memory"):
        list(read_events(['data: {"error": {"message": "no memory"}}']))


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
