import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from headlong.errors import AddressError
from headlong.server.serving import bind, url_of
from headlong.server.settings import ServerSettings
from server_process import ServerProcess
from talking_model import write_talking_model

ENDLESS = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 20_000, "stream": True}
ENDLESS |= {"ignore_eos": True, "mtp": "off"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model that can talk for a long time."""
    path = tmp_path_factory.mktemp("serving") / "tiny.gguf"
    return str(write_talking_model(path, context_length=30_000))


def events(lines: Iterator[str]) -> Iterator[str]:
    """Yield the data of server-sent events."""
    for line in lines:
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def read_stream(url: str, body: dict[str, Any], seen: list[str]) -> None:
    """Ask for a stream and note its events until it ends."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        seen.extend([str(response.status_code)])
        seen.extend(events(response.iter_lines()))


def wait_until_seen(seen: list[str], num: int) -> None:
    """Wait until a stream has brought something."""
    deadline = time.monotonic() + 30
    while len(seen) < num:
        assert time.monotonic() < deadline, "the stream did not begin"
        time.sleep(0.01)


def test_an_idle_server_ends_at_once_and_well(model: str) -> None:
    with ServerProcess(model) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0
        assert "Traceback" not in server.text


OWN_SERVER = """
import gc, os, signal, sys
from headlong.llm import LLM
from headlong.server.app import make_app
from headlong.server.served_model import ServedModel
from headlong.server.serving import bind, run_server
from headlong.server.settings import ServerSettings

def ready():
    print("left to the collector:", len(gc.get_objects()), "never again:", gc.get_freeze_count())
    os.kill(os.getpid(), signal.SIGTERM)

settings = ServerSettings(port=0)
llm = LLM.load(sys.argv[1], limits=settings.engine_limits)
sys.exit(run_server(make_app(ServedModel.of_llm(llm), settings), bind(settings), settings, ready))
"""


def test_streams_do_not_wait_for_the_collector_to_look_at_the_model(model: str) -> None:
    command = [sys.executable, "-c", OWN_SERVER, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    left, frozen = (int(word) for word in done.stdout.split() if word.isdigit())
    assert left < frozen / 10, done.stdout


def test_running_requests_may_end_while_new_ones_are_told(model: str) -> None:
    body = ENDLESS | {"max_tokens": 2000}
    with ServerProcess(model) as server, ThreadPoolExecutor() as pool:
        seen: list[str] = []
        reading = pool.submit(read_stream, server.url, body, seen)
        wait_until_seen(seen, 3)
        server.signal(signal.SIGINT)
        while "Shutting down" not in server.text:
            time.sleep(0.01)
        health = httpx.get(f"{server.url}/health")
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=body)
        reading.result(60)
        assert server.wait() == 0
    assert health.status_code == 503
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert seen[0] == "200"
    assert seen[-1] == "[DONE]"
    assert "were cut" not in server.text


def test_requests_that_take_longer_are_cut_with_an_answer(model: str) -> None:
    whole = ENDLESS | {"stream": False}
    with ServerProcess(model, "--drain-timeout-s", "0.3") as server, ThreadPoolExecutor() as pool:
        url, seen = server.url, list[str]()
        streaming = pool.submit(read_stream, url, ENDLESS, seen)
        waiting = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=whole, timeout=60)
        wait_until_seen(seen, 3)
        server.signal()
        streaming.result(60)
        answer = waiting.result(60)
        assert server.wait() == 0
    assert "Requests that took longer were cut: 2." in server.text
    assert "shutting down" in json.loads(seen[-1])["error"]["message"]
    assert answer.status_code == 503
    assert "shutting down" in answer.json()["error"]["message"]


def test_a_second_signal_leaves_at_once(model: str) -> None:
    with ServerProcess(model) as server, ThreadPoolExecutor() as pool:
        seen: list[str] = []
        reading = pool.submit(read_stream, server.url, ENDLESS, seen)
        wait_until_seen(seen, 3)
        server.signal()
        while "Shutting down" not in server.text:
            time.sleep(0.01)
        server.signal()
        assert server.wait(5) == 128 + signal.SIGTERM
        with pytest.raises(httpx.HTTPError):
            reading.result(30)


def test_systemd_is_told_when_it_serves_and_when_it_stops(model: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(60)
        with ServerProcess(model, environ={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as server:
            assert channel.recv(100) == b"READY=1"
            assert httpx.get(f"{server.url}/health").status_code == 200
            server.signal()
            assert channel.recv(100) == b"STOPPING=1"
            assert server.wait() == 0


def exchange(url: str, request: bytes) -> bytes:
    """Send bytes on a connection of its own; return what comes back until it is closed."""
    address = url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=20) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_what_a_stranger_sends_by_hand_is_refused_or_ends(model: str) -> None:
    chunked = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    post = b"POST /v1/completions HTTP/1.1\r\n"
    with ServerProcess(model, "--host", "0.0.0.0", "--body-timeout-s", "0.5") as server:
        url = server.url
        both = exchange(url, post + b"Host: localhost\r\n" + chunked)
        empty = exchange(url, post + b"Host:\r\nOrigin: null\r\nConnection: close\r\n\r\n")
        foreign = httpx.get(f"{url}/health", headers={"host": "evil.example"})
        own = httpx.get(f"{url}/health")
        began_s = time.monotonic()
        assert exchange(url, post + b"Host: localhost\r\n") == b""
        assert time.monotonic() - began_s < 10
    assert b" 400 " in both.splitlines()[0]
    assert b"ambiguous_length" in both
    assert b" 400 " in empty.splitlines()[0]
    assert (foreign.status_code, own.status_code) == (403, 200)


def test_a_port_in_use_is_named_before_a_model_is_loaded() -> None:
    with bind(ServerSettings(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with ServerProcess("no-such-model", "--port", str(port)) as server:
            assert server.wait() == 1
    assert f"Port {port} of 127.0.0.1 is in use" in server.text
    assert f"--port {port + 1}" in server.text
    assert "no-such-model" not in server.text


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(AddressError, match=r"192\.0\.2\.1 cannot be listened on"):
        bind(ServerSettings(host="192.0.2.1", port=0))
    with pytest.raises(AddressError, match="not known"):
        bind(ServerSettings(host="no-such-host.invalid"))


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")]
)
def test_the_address_shown_is_one_a_client_can_use(host: str, shown: str) -> None:
    try:
        listener = bind(ServerSettings(host=host, port=0))
    except AddressError:
        pytest.skip("this machine has no such address")
    with listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://{shown}:{port}"
