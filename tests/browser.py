"""The machine's own browser, for tests of pages; no fixture, so that any test can ask."""

import os
import shutil

import pytest

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
