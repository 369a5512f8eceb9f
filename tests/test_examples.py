"""Every example runs as it stands and says something."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from live_server import ONE_THREAD, serve

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
AGENT = next(path for path in EXAMPLES if path.name == "agent.py")
ALONE = [path for path in EXAMPLES if path != AGENT]


def run(path: Path, *arguments: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """Run an example to its end; one that needs a server gets its address."""
    environment = {**os.environ, "HEADLONG_URL": url}
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment
    )


@pytest.fixture(scope="module")
def url(default_model_path: Path) -> Iterator[str]:
    """The address of a server with the default model."""
    with serve(default_model_path, environment=ONE_THREAD) as server:
        yield server.url


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.name)
def test_example_runs(path: Path, default_model_path: Path) -> None:
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= (80 if path == AGENT else 40)


def test_agent_uses_each_tool_and_tells_what_every_step_gained(url: str) -> None:
    done = run(AGENT, url=url)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+) \{", done.stdout, re.MULTILINE) == [
        "search",
        "read_file",
        "calculate",
    ]
    assert "12 + 37 = 49" in done.stdout
    steps = re.findall(r"^\d: (\d+) tokens, (\S+) a round, (\S+) x$", done.stdout, re.MULTILINE)
    total = re.search(
        r"^Together: (\d+) tokens in \d+ ms, \S+ x as fast$", done.stdout, re.MULTILINE
    )
    assert total is not None
    assert int(total[1]) == sum(int(count) for count, _, _ in steps)
    assert all(float(length) > 1 for _, length, _ in steps)


def test_agent_without_a_server_says_what_to_start() -> None:
    done = run(AGENT, url="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "Start `headlong serve`" in done.stderr
    assert "Traceback" not in done.stderr


def test_agent_passes_on_why_a_server_refuses(url: str) -> None:
    done = run(AGENT, "a " * 9000, url=url)
    assert done.returncode == 1
    assert "context_length_exceeded" in done.stderr
    assert "Traceback" not in done.stderr
