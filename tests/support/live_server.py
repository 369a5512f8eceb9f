"""A real server: `headlong serve` in a process of its own, stopped at the end."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from openai import OpenAI

START_S = 60

ONE_THREAD = {**os.environ, "HEADLONG_THREADS": "1"}
"""An environment for tests: threads that wait for one another crawl on a busy machine."""


@dataclass
class LiveServer:
    """A running server and what it has written."""

    url: str
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    clients: list[OpenAI] = field(default_factory=list)

    def client(self, api_key: str = "unused", timeout_s: float = 60.0) -> OpenAI:
        """Return the official client, set up for this server; it retries nothing."""
        url = f"{self.url}/v1"
        client = OpenAI(base_url=url, api_key=api_key, timeout=timeout_s, max_retries=0)
        self.clients.append(client)
        return client

    def get(self, path: str, **options: object) -> httpx.Response:
        """Fetch a path."""
        return httpx.get(f"{self.url}{path}", timeout=30, **options)  # type: ignore[arg-type] # passed on

    def post(self, path: str, body: object) -> httpx.Response:
        """Post a body as JSON."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=60)


@contextmanager
def serve(
    model: Path, *options: str, environment: dict[str, str] | None = None
) -> Iterator[LiveServer]:
    """Run a server on a free port for the length of a `with` block."""
    command = [sys.executable, "-m", "headlong", "serve", str(model), "--port", "0", *options]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    )
    server = LiveServer("", process)
    is_ready = threading.Event()
    reader = threading.Thread(target=_read, args=(server, is_ready), daemon=True)
    reader.start()
    try:
        is_ready.wait(START_S)
        assert server.url, "".join(server.lines)
        yield server
    finally:
        for client in server.clients:
            client.close()
        process.terminate()
        process.wait(timeout=60)
        reader.join(timeout=10)
        assert process.stderr is not None
        process.stderr.close()


def _read(server: LiveServer, is_ready: threading.Event) -> None:
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.lines.append(line)
        found = re.search(r"http://[\w.:\[\]]+", line)
        if found and not is_ready.is_set():
            server.url = found[0]
            is_ready.set()
    is_ready.set()
