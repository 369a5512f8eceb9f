"""Chat templates rendered in a process of their own, which ends when one runs away.

In:  template source and the variables it may see.
Out: the text it writes, or a `TextError`: about the template, or because it ran past its limits.
A template comes with a model, and so from a stranger. Whatever it does, this process stays free:
Ctrl-C works, other threads run, and the wait ends after `MAX_SECONDS`.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from headlong.errors import TextError

MAX_SECONDS = 2.0
"""How long one rendering may take; ordinary ones take a few thousandths of it."""

MAX_MEMORY = 2**29
"""How much memory the process may have, in bytes."""

MAX_TEXT = 2**25
"""How long the finished text may be, in characters."""

_WORKER = Path(__file__).with_name("template_worker.py")
_REMEDY = "Do not use this chat template; give the model a plain prompt, or get another copy."


class TemplateProcess:
    """A process that renders templates: started when first needed, and again after its end."""

    def __init__(self, max_seconds: float = MAX_SECONDS, max_memory: int = MAX_MEMORY) -> None:
        self._max_seconds = max_seconds
        self._max_memory = max_memory
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._parent_id = 0

    @property
    def process_id(self) -> int | None:
        """The process that runs now, if any."""
        return None if self._process is None else self._process.pid

    def ask(self, source: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """Render a template; without variables, find the names it reads from outside."""
        request = {"source": source, "variables": variables}
        try:
            line = json.dumps(request, default=_plain).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"The messages or tools cannot be written as JSON: {error}."
            raise TextError(problem, "Give texts, numbers, lists and records only.") from error
        with self._lock:
            try:
                reply: dict[str, Any] = json.loads(self._exchange(line))
            except BaseException:  # after Ctrl-C, its answer would be taken for the next one's
                self.stop()
                raise
        if "problem" in reply:
            raise TextError(reply["problem"], reply["remedy"])
        return reply

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and self._parent_id == os.getpid():  # else it is a fork's parent's
            process.kill()
            process.communicate()

    def _exchange(self, line: bytes) -> bytes:
        process = self._find_process()
        assert process.stdin is not None
        assert process.stdout is not None
        reply = b""
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            pass
        if reply.endswith(b"\n"):
            return reply
        faults = {
            1: f"took more than {self._max_seconds:g} seconds",
            2: f"asks for more than {self._max_memory >> 20} MB of memory",
        }
        code = process.wait()
        fault = faults.get(code, f"broke off its process, which ended with {code}")
        raise TextError(f"The model's chat template {fault}.", _REMEDY)

    def _find_process(self) -> subprocess.Popen[bytes]:
        is_own = self._parent_id == os.getpid()
        if self._process is None or not is_own or self._process.poll() is not None:
            self.stop()
            self._process = self._start()
            self._parent_id = os.getpid()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        limits = (self._max_seconds, self._max_memory, MAX_TEXT)
        # -P keeps the script's own folder out of the child's import path.
        command = [sys.executable, "-P", str(_WORKER), *map(str, limits)]
        path = os.pathsep.join(filter(None, sys.path))
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path},
            )
        except OSError as error:
            problem = f"The process that renders chat templates cannot be started: {error}."
            raise TextError(problem, "Check the limits on processes and memory.") from error
        assert process.stdout is not None
        if not process.stdout.readline():
            process.communicate()
            problem = f"The process that renders chat templates ended with {process.returncode}."
            raise TextError(problem, f"Run `{' '.join(command)}` to see why.")
        return process


_shared = TemplateProcess()
atexit.register(_shared.stop)


class BoundedTemplate:
    """One template, checked; every rendering has the whole time and memory."""

    def __init__(self, source: str, process: TemplateProcess = _shared) -> None:
        self._source = source
        self._process = process
        self.variables = frozenset(process.ask(source, None)["names"])
        """The names the template reads from outside."""

    def render(self, variables: Mapping[str, Any]) -> str:
        """Fill in the template, or say what it objected to."""
        text: str = self._process.ask(self._source, variables)["text"]
        return text


def _plain(value: Any) -> Any:
    """Return what JSON has no word for as what it has one for; a TypeError says there is none."""
    return dict(value) if isinstance(value, Mapping) else list(value)
