import asyncio
import io
import json
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse

from asgi_calls import Client
from headlong.decode.stats import DecodeStats
from headlong.server.live import FinishedRequest
from headlong.server.logs import set_up_logs
from headlong.server.metrics import Metrics
from headlong.server.middleware import add_middleware
from headlong.server.settings import ApiKey, ServerSettings

RECORD = FinishedRequest(
    id="chatcmpl-1",
    created_s=0.0,
    route="/v1/chat/completions",
    mtp="auto",
    num_prompt_tokens=12,
    num_completion_tokens=34,
    finish_reason="stop",
    total_s=0.5,
    ttft_s=0.1,
    tokens_per_second=85.0,
    report={"measured_speedup": 1.7, "acceptance_length": 2.5, "off_reason": None},
    stats=DecodeStats(),
)


@pytest.fixture
def log() -> io.StringIO:
    """Where the log goes."""
    return io.StringIO()


def observed(settings: ServerSettings, log: io.StringIO, metrics: Metrics | None = None) -> Client:
    """Return a client of a small app behind all middleware, logging to `log`."""
    set_up_logs(settings, log)
    app = FastAPI()
    add_middleware(app, settings, metrics or Metrics())

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, str]:
        await request.body()
        request.state.record = RECORD
        return {"answer": "the moon is made of rock", "id": request.state.request_id}

    @app.post("/broken")
    async def broken() -> None:
        raise ZeroDivisionError("a fault of ours")

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse("<p>hello")

    return Client(app)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    """Return the lines of a JSON log."""
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_one_line_tells_a_request_without_its_text(log: io.StringIO) -> None:
    key = ApiKey("secret-of-alice", "alice")
    client = observed(ServerSettings(log_format="json", api_keys=(key,)), log)
    body = [b'{"messages": "what is the moon"}']
    answer = client.post("/v1/chat/completions", body, authorization=f"Bearer {key.key}")
    assert answer.status == 200
    (line,) = lines(log)
    assert line["request_id"] == answer.headers["x-request-id"] == json.loads(answer.body)["id"]
    assert line["path"] == "/v1/chat/completions"
    assert (line["method"], line["status"], line["client"]) == ("POST", 200, "alice")
    assert (line["num_prompt_tokens"], line["num_completion_tokens"]) == (12, 34)
    assert (line["mtp"], line["measured_speedup"], line["finish_reason"]) == ("auto", 1.7, "stop")
    assert line["level"] == "info"
    assert line["duration_ms"] > 0
    for secret in ("moon", key.key):
        assert secret not in log.getvalue()


def test_text_is_logged_only_when_asked_for(log: io.StringIO) -> None:
    client = observed(ServerSettings(log_format="json", log_prompts=True), log)
    client.post("/v1/chat/completions", [b'{"messages": ', b'"what is the moon"}'])
    (line,) = lines(log)
    assert line["request_body"] == '{"messages": "what is the moon"}'
    assert "made of rock" in line["response_body"]


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [("trace-42.b:1", True), ("a b", False), ("x" * 129, False), ('"},{"level":"', False)],
)
def test_a_clients_request_id_is_taken_if_sane(
    log: io.StringIO, given: str, is_taken: bool
) -> None:
    client = observed(ServerSettings(log_format="json"), log)
    answer = client.post("/v1/chat/completions", x_request_id=given)
    assert (answer.headers["x-request-id"] == given) is is_taken
    assert lines(log)[0]["request_id"] == answer.headers["x-request-id"]


def test_a_fault_nobody_foresaw_is_answered_and_logged(log: io.StringIO) -> None:
    metrics = Metrics()
    client = observed(ServerSettings(log_format="json"), log, metrics)
    answer = client.post("/broken")
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert "fault of ours" not in answer.body.decode()
    fault, line = lines(log)
    assert "ZeroDivisionError: a fault of ours" in fault["traceback"]
    assert answer.headers["x-request-id"] in fault["message"]
    assert (line["status"], line["level"]) == (500, "error")
    rendered = metrics.render().decode()
    assert 'headlong:http_requests_total{route="/broken",status="500"} 1.0' in rendered


def test_paths_nobody_knows_share_a_label(log: io.StringIO) -> None:
    """Or a scanner could fill the memory with labels."""
    metrics = Metrics()
    client = observed(ServerSettings(log_format="json"), log, metrics)
    for number in range(3):
        assert client.get(f"/nothing/{number}").status == 404
    rendered = metrics.render().decode()
    assert 'headlong:http_requests_total{route="other",status="404"} 3.0' in rendered
    assert "nothing" not in rendered


def test_head_is_answered_like_get_without_a_body(log: io.StringIO) -> None:
    """Guards servers that load balancers take for dead: they ask with HEAD."""
    metrics = Metrics()
    client = observed(ServerSettings(log_format="json", log_level="debug"), log, metrics)
    asked, looked = client.get("/"), asyncio.run(client.call("HEAD", "/"))
    assert (looked.status, looked.body) == (200, b"")
    assert looked.headers["content-length"] == asked.headers["content-length"] != "0"
    assert lines(log)[-1]["method"] == "HEAD"
    assert 'headlong:http_requests_total{route="/",status="200"} 2.0' in metrics.render().decode()
    assert asyncio.run(client.call("HEAD", "/broken")).status == 405


def test_people_read_one_line_each(log: io.StringIO) -> None:
    client = observed(ServerSettings(log_format="human"), log)
    client.post("/v1/chat/completions", x_request_id="trace-1")
    line = log.getvalue()
    assert line.count("\n") == 1
    for fact in ("POST /v1/chat/completions 200", "12 + 34 tokens", "1.70 ×", "stop", "trace-1"):
        assert fact in line


def test_a_client_cannot_forge_a_line(log: io.StringIO) -> None:
    client = observed(ServerSettings(log_format="human"), log)
    client.get("/x\n00:00:00 POST /forged 200\x1b[2J")
    assert log.getvalue().count("\n") == 1
    assert "\x1b" not in log.getvalue()


def test_looks_at_the_page_are_not_logged_unless_debugging(log: io.StringIO) -> None:
    observed(ServerSettings(log_format="human"), log).get("/")
    assert log.getvalue() == ""
    observed(ServerSettings(log_format="human", log_level="debug"), log).get("/")
    assert "GET / 200" in log.getvalue()


def test_the_page_may_load_nothing_from_elsewhere(log: io.StringIO) -> None:
    client = observed(ServerSettings(), log)
    headers = client.get("/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in client.post("/v1/chat/completions").headers


def test_allowed_origins_get_their_headers(log: io.StringIO) -> None:
    client = observed(ServerSettings(cors_origins=("https://chat.example",)), log)
    answer = client.post("/v1/chat/completions", origin="https://chat.example")
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"
    stranger = client.post("/v1/chat/completions", origin="https://evil.example")
    assert stranger.status == 403
    assert "access-control-allow-origin" not in stranger.headers
