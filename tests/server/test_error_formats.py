"""Errors have the form of the path that was asked for, wherever they come from."""

import json

from headlong.server.error_formats import failure_event, format_error
from headlong.server.refusal import Refusal
from live_server import LiveServer

BUSY = Refusal(429, "Full.", "rate_limit_error", "queue_full", "model")


def test_each_protocol_has_its_own_form() -> None:
    assert format_error("/v1/chat/completions", BUSY) == BUSY.body
    told = {"type": "rate_limit_error", "message": "Full."}
    assert format_error("/v1/messages", BUSY) == {"type": "error", "error": told}
    assert format_error("/api/chat", BUSY) == {"error": "Full."}
    fault = format_error("/v1/messages/count_tokens", Refusal(500, "No."))
    assert fault["error"]["type"] == "api_error"


def test_streams_end_in_their_own_form() -> None:
    assert failure_event("/v1/chat/completions", BUSY).startswith(b'data: {"error"')
    assert failure_event("/v1/messages", BUSY).startswith(b"event: error\ndata: {")
    assert failure_event("/api/chat", BUSY) == b'{"error":"Full."}\n'
    event = failure_event("/v1/responses", BUSY).removeprefix(b"event: error\ndata: ")
    assert json.loads(event)["code"] == "queue_full"


def test_what_no_route_has_seen_is_shaped_as_well(tiny_live: LiveServer) -> None:
    answer = tiny_live.post("/v1/messages", [1])
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["x-request-id"]
    missing = tiny_live.get("/api/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"].startswith("There is no GET /api/nothing")
