"""Servers that several test files share: real processes, started once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from live_server import ONE_THREAD, LiveServer, serve


@pytest.fixture(scope="session")
def live(default_model_path: Path) -> Iterator[LiveServer]:
    """The default model behind a server process."""
    with serve(default_model_path, environment=ONE_THREAD) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_live(tiny_model_path: Path) -> Iterator[LiveServer]:
    """The tiny model behind a server process; quick, and talks nonsense."""
    with serve(tiny_model_path, "--backend", "numpy") as server:
        yield server
