import socket

import pytest
from fastapi import FastAPI, Request
from starlette.types import Receive, Scope, Send

from asgi_calls import Client
from headlong.server.auth import AuthMiddleware, OriginMiddleware
from headlong.server.metrics import Metrics
from headlong.server.settings import ApiKey, ServerSettings

KEYS = (ApiKey("secret-of-alice", "alice", mtp=4), ApiKey("secret-of-bob", "bob"))


def guarded(settings: ServerSettings, metrics: Metrics | None = None) -> Client:
    """Return a client of a small app behind the guards."""
    app = FastAPI()
    metrics = metrics or Metrics()
    app.add_middleware(AuthMiddleware, settings=settings, metrics=metrics)
    app.add_middleware(OriginMiddleware, settings=settings, metrics=metrics)

    @app.get("/{path:path}")
    @app.post("/{path:path}")
    async def answer(request: Request) -> str | None:
        client: ApiKey | None = request.state.client
        return None if client is None else client.name

    return Client(app)


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": "Bearer secret-of-bob"},
        {"authorization": "bearer  secret-of-bob"},
        {"x_api_key": "secret-of-bob"},
    ],
)
def test_a_key_opens_the_door_and_names_its_owner(header: dict[str, str]) -> None:
    answer = guarded(ServerSettings(api_keys=KEYS)).post("/v1/chat/completions", **header)
    assert (answer.status, answer.body) == (200, b'"bob"')


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": "Basic secret-of-bob"}, "missing_api_key"),
        ({"authorization": "Bearer secret-of-bo"}, "invalid_api_key"),
        ({"authorization": "Bearer secret-of-bobx"}, "invalid_api_key"),
        ({"x_api_key": "SECRET-OF-BOB"}, "invalid_api_key"),
    ],
)
def test_without_a_right_key_it_stays_shut(header: dict[str, str], code: str) -> None:
    metrics = Metrics()
    answer = guarded(ServerSettings(api_keys=KEYS), metrics).post("/v1/models", **header)
    assert answer.status == 401
    assert answer.error["code"] == code
    assert answer.headers["www-authenticate"] == "Bearer"
    assert b'headlong:requests_refused_total{reason="auth"} 1.0' in metrics.render()


def test_what_is_open_without_a_key_can_be_set() -> None:
    plain = guarded(ServerSettings(api_keys=KEYS))
    assert plain.get("/health").status == 200
    assert plain.get("/metrics").status == 401
    assert plain.get("/").status == plain.get("/page/app.js").status == 200
    assert plain.get("/headlong/live").status == 401
    turned = guarded(ServerSettings(api_keys=KEYS, open_metrics=True, open_page=False))
    assert turned.get("/metrics").status == 200
    assert turned.get("/").status == turned.get("/page/app.js").status == 401


def test_without_keys_nobody_is_asked() -> None:
    answer = guarded(ServerSettings()).post("/v1/chat/completions", authorization="Bearer any")
    assert (answer.status, answer.body) == (200, b"null")


def test_a_strangers_web_page_is_refused() -> None:
    """Any page in a browser can send requests to this machine; it is told no before they run."""
    client = guarded(ServerSettings())
    answer = client.post("/v1/chat/completions", origin="https://evil.example")
    assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
    assert client.post("/v1/chat/completions", origin="null").status == 403
    own = client.post("/v1/chat/completions", origin="http://127.0.0.1:8000")
    assert own.status == 200
    allowed = guarded(ServerSettings(cors_origins=("https://chat.example",)))
    assert allowed.post("/", origin="https://chat.example").status == 200
    assert allowed.post("/", origin="https://evil.example").status == 403
    assert guarded(ServerSettings(cors_origins=("*",))).post("/", origin="http://x.y").status == 200


def test_a_strangers_domain_that_points_here_is_refused() -> None:
    client = guarded(ServerSettings())
    answer = client.get("/", host="evil.example:8000")
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    for name in ("localhost:8000", "127.0.0.1", "[::1]:8000", "chat.localhost"):
        assert client.get("/", host=name).status == 200
    behind = guarded(ServerSettings(allowed_hosts=("llm.example",)))
    assert behind.get("/", host="llm.example").status == 200
    assert behind.get("/", host="evil.example").status == 403
    assert guarded(ServerSettings(allowed_hosts=("*",))).get("/", host="any.example").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "127.0.0.1"])
def test_wherever_it_listens_only_its_own_machine_is_meant(host: str) -> None:
    """As in a container; a page of the stranger's domain has the same origin as the host."""
    client = guarded(ServerSettings(host=host))
    asked = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
    answer = client.post("/v1/chat/completions", **asked)
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    assert "--allowed-hosts evil.example" in answer.error["message"]
    name = socket.gethostname()
    for own in (host, "localhost", "[::1]:8000", f"{name}:8000", f"{name.partition('.')[0]}.local"):
        assert client.get("/", host=own).status == 200
        assert client.get("/", host=own, origin=f"http://{own}").status == 200
    assert client.get("/", host="203.0.113.9").status == 403


@pytest.mark.parametrize(
    ("reached", "host"),
    [
        ("192.0.2.5", "192.0.2.5:8000"),
        ("::ffff:192.0.2.5", "192.0.2.5"),
        ("fe80::1%e0", "[fe80::1]"),
    ],
)
def test_the_address_a_client_reached_is_this_machines(reached: str, host: str) -> None:
    app = guarded(ServerSettings(host="0.0.0.0")).app

    async def reached_app(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "server": (reached, 8000)}, receive, send)

    assert Client(reached_app).get("/", host=host).status == 200
    assert Client(reached_app).get("/", host="192.0.2.6").status == 403


@pytest.mark.parametrize("keys", [(), KEYS])
def test_requests_that_could_be_read_in_two_ways_are_refused(keys: tuple[ApiKey, ...]) -> None:
    metrics = Metrics()
    client = guarded(ServerSettings(api_keys=keys), metrics)
    for host in ("", ":8000"):
        answer = client.post("/v1/models", host=host, origin="null")
        assert (answer.status, answer.error["code"]) == (400, "empty_host")
    answer = client.post("/v1/models", content_length="2", transfer_encoding="chunked")
    assert (answer.status, answer.error["code"]) == (400, "ambiguous_length")
    assert answer.headers["connection"] == "close"
    assert b'headlong:requests_refused_total{reason="malformed"} 3.0' in metrics.render()


def test_an_origin_that_is_no_address_is_refused() -> None:
    assert guarded(ServerSettings()).post("/", origin="http://[").status == 403


def test_with_keys_the_key_is_the_guard() -> None:
    """A page cannot send a key it does not have; proxies may use any name."""
    client = guarded(ServerSettings(api_keys=KEYS))
    header = {"authorization": "Bearer secret-of-bob", "origin": "https://other.example"}
    assert client.get("/", host="llm.example", **header).status == 200
    listed = guarded(ServerSettings(api_keys=KEYS, allowed_hosts=("LLM.example",)))
    assert listed.get("/", host="llm.example", **header).status == 200
    assert listed.get("/", host="localhost", **header).status == 200
    assert listed.get("/", host="evil.example", **header).status == 403
