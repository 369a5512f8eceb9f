"""A chat at a real terminal, with line editing."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

pty = pytest.importorskip("pty")
pytest.importorskip("readline")

WAIT_S = 20.0


class Terminal:
    """Runs a chat behind a pseudo-terminal."""

    def __init__(self, model: str, *options: str) -> None:
        self._leader, follower = pty.openpty()
        command = [sys.executable, "-m", "headlong", "run", model, "--max-tokens", "3", *options]
        environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(follower),
        )
        os.close(follower)
        self.seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._leader)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._leader, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Return what came up to a pattern, and forget it."""
        deadline = time.monotonic() + WAIT_S
        while (found := re.search(pattern, self.seen)) is None:
            left_s = deadline - time.monotonic()
            if not select.select([self._leader], [], [], max(0.0, left_s))[0]:
                pytest.fail(f"it says no more: {self.seen!r}")
            try:
                self.seen += os.read(self._leader, 4096).decode(errors="replace")
            except OSError:
                pytest.fail(f"it has ended: {self.seen}")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before


def _take_terminal(descriptor: int) -> None:
    """Make a terminal the one whose Ctrl-C reaches this process."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.default_int_handler)
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


@pytest.fixture
def chat(model: str, state_folder: Path) -> Iterator[Terminal]:
    """A chat that waits for the first message."""
    with Terminal(model) as terminal:
        terminal.wait_for("Ctrl-D leaves")
        terminal.wait_for(r"\[\?2004h")  # asks the terminal to mark what is pasted
        terminal.wait_for("> ")
        yield terminal


def test_pasted_lines_are_one_message_and_everything_is_kept(
    chat: Terminal, state_folder: Path
) -> None:
    chat.type("\033[200~one\ntwo\033[201~\r")
    chat.wait_for("tokens/s")
    chat.wait_for("> ")
    chat.type("\033[A")  # arrow up: the same message again
    chat.wait_for("two")
    chat.type("\r")
    chat.wait_for("tokens/s")
    chat.wait_for("> ")
    chat.type("a\033\rb\r")  # Alt-Enter
    chat.wait_for("tokens/s")
    chat.wait_for("> ")
    kept = json.loads((state_folder / "sessions/last.json").read_text())
    said = [one["content"] for one in kept["messages"] if one["role"] == "user"]
    assert said == ["one\ntwo", "one\ntwo", "a\nb"]
    typed = (state_folder / "chat-history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in typed] == said


def test_tab_completes_commands_and_settings(chat: Terminal) -> None:
    chat.type("/set temp\t0.5\r")
    chat.wait_for(r"temperature  0\.5")


def test_ctrl_c_drops_the_line_and_ctrl_d_leaves(chat: Terminal) -> None:
    chat.type("never mind")
    chat.wait_for("never mind")
    time.sleep(0.1)  # Python misses a Ctrl-C between a letter and waiting for the next one
    chat.type("\x03")
    chat.wait_for("Ctrl-D or /quit leaves")
    chat.wait_for("> ")
    chat.type("\r")  # nothing is said to nothing
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.process.wait(WAIT_S) == 0
