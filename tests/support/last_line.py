"""What a verb wrote with `--json`."""

import json
from typing import Any

import pytest


def read_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the last line of standard output."""
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(document, dict)
    return document
