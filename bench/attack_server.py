"""The server that `attack.py` attacks, and how what came of it is told."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx

WAIT_S = 20.0
"""Longest that one exchange may take; what takes longer did not hold."""

LIMITS = ("--max-running", "4", "--max-waiting", "8", "--max-body-bytes", "1MiB")
MORE_LIMITS = ("--body-timeout-s", "1", "--request-timeout-s", "30", "--log-format", "json")

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Name three colours."}], "temperature": 0}
NORMAL = {**ASK, "max_tokens": 24}
Facts = Iterator[tuple[str, bool, object]]
"""A fact, whether it held, and what was seen."""


class Server:
    """A server of this machine: a process of our own, or one that runs already."""

    def __init__(self, url: str | None, model: str | None) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        """What our own process logged."""
        if url is None:
            self.process, url = self._start([model] if model else [])
        self.url = url
        self.port = urlsplit(url).port or 80
        self.host = urlsplit(url).hostname or "localhost"
        self.client = httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False)

    def _start(self, named: list[str]) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "headlong", "serve", *named, "--port", "0"]
        process = subprocess.Popen(
            [*command, *LIMITS, *MORE_LIMITS], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"http://[\w.:]+", line):
                    reading = (self.lines.extend, (process.stderr,))
                    threading.Thread(target=reading[0], args=reading[1], daemon=True).start()
                    return process, found[0]
        except BaseException:  # out of time, or Ctrl-C: it must not stay
            process.kill()
            raise
        process.wait()
        raise SystemExit("The server did not start.")

    def post(self, path: str, body: object, **options: Any) -> httpx.Response:
        """Send a body: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        return self.client.post(path, content=content, headers=headers, **options)

    def say(self, text: str) -> str:
        """Send bytes on a connection of their own; return what comes until the server closes it."""
        with socket.create_connection((self.host, self.port), timeout=WAIT_S) as connection:
            connection.sendall(text.replace("\n", "\r\n").encode())
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return answer.decode("utf-8", "replace")

    def comes_to(self, *, is_running: bool) -> bool:
        """Wait until requests run or wait, or none does; return whether it came to that."""
        pattern = re.compile(r"^headlong:num_requests_(?:running|waiting)\S* (\S+)$", re.M)
        deadline_s = time.monotonic() + WAIT_S / 2
        while time.monotonic() < deadline_s:
            numbers = map(float, pattern.findall(self.client.get("/metrics").text))
            if (sum(numbers) > 0) == is_running:
                return True
            time.sleep(0.05)
        return False

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """End our own process as Ctrl-C does, by force if it stays; return its exit code."""
        self.client.close()
        if self.process is None:
            return 0
        self.process.send_signal(number)
        try:
            return self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            return -9
        finally:
            self.process.kill()
            self.process.wait()
