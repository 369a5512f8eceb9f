"""Servers and browsers that several test files share: real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browser import running_browser
from live_server import ONE_THREAD, LiveServer, serve
from page_visits import Visits


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser that the tests of a file share."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, tiny_live: LiveServer) -> Iterator[Page]:
    """A page of the tiny model's server; it may neither log an error nor ask another host."""
    visits = Visits(browser, tiny_live.url)
    yield visits.open()
    visits.close()
    assert visits.complaints == []
