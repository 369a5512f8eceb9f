"""A real `headlong serve` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import pytest

START_S = 60.0
_ADDRESS = re.compile(r"API\W+(http://\S+)/v1")


class ServerProcess:
    """Starts a server on a free port; use it as a context manager."""

    def __init__(self, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "headlong", "serve", "--port", "0", *arguments]
        environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "200"} | dict(environ or {})
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        """What it has said on standard error so far."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    @property
    def url(self) -> str:
        """Where it listens; waits until it does."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = _ADDRESS.search(self.text)
            if found is not None:
                return found[1]
            time.sleep(0.02)
        pytest.fail(f"the server did not start:\n{self.text}")

    @property
    def text(self) -> str:
        """All it has said."""
        return "".join(self.lines)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for its end and return the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
