"""The machine's own browser, for tests of pages; no fixture, so that any test can ask."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """Return the path of a Chromium; None where there is none and none is required.

    `HEADLONG_REQUIRE_BROWSER=1` turns a missing one into a failure: CI must not skip in silence.
    """
    for name in NAMES:
        found = shutil.which(name)
        if found is not None:
            return found
    if os.environ.get("HEADLONG_REQUIRE_BROWSER") == "1":
        pytest.fail("There is no Chromium, and HEADLONG_REQUIRE_BROWSER is 1.", pytrace=False)
    return None


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run the machine's Chromium without a window; skip the test where there is none."""
    path = find_browser()
    if path is None:
        pytest.skip("There is no Chromium on this machine.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_page(path: Path, width: int, **options: Any) -> Iterator[Page]:
    """Open a file in a window of that width."""
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": width, "height": 800}, **options)
        page.goto(path.as_uri())
        yield page
