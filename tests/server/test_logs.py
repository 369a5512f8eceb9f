import io
import json
import logging

import pytest

from headlong.server.logs import log_request, set_up_logs
from headlong.server.settings import ServerSettings

FACTS = {"method": "POST", "path": "/v1/models", "duration_ms": 12.0, "request_id": "req_1"}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_people_get_words_and_pipes_get_json() -> None:
    for stream, is_json in ((Terminal(), False), (io.StringIO(), True)):
        set_up_logs(ServerSettings(), stream)
        log_request({**FACTS, "status": 200}, is_routine=False)
        assert stream.getvalue().startswith("{") is is_json
    set_up_logs(ServerSettings(log_format="human"), stream := io.StringIO())
    log_request({**FACTS, "status": 200}, is_routine=False)
    assert "POST /v1/models 200 · 0.01 s · req_1" in stream.getvalue()


@pytest.mark.parametrize(
    ("status", "is_routine", "level"),
    [
        (200, False, "info"),
        (404, False, "info"),
        (504, False, "warning"),
        (500, True, "error"),
        (200, True, "debug"),
    ],
)
def test_what_went_wrong_is_louder(status: int, is_routine: bool, level: str) -> None:
    set_up_logs(ServerSettings(log_level="debug"), stream := io.StringIO())
    log_request({**FACTS, "status": status}, is_routine=is_routine)
    assert json.loads(stream.getvalue())["level"] == level


def test_uvicorns_complaints_come_in_the_same_form_and_its_chatter_does_not() -> None:
    set_up_logs(ServerSettings(log_format="json"), stream := io.StringIO())
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["message"] == "Invalid HTTP request received."


def test_a_traceback_stays_within_its_json_line() -> None:
    set_up_logs(ServerSettings(log_format="json"), stream := io.StringIO())
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("headlong.test").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: two\nlines" in json.loads(line)["traceback"]
