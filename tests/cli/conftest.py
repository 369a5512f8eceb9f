"""What verbs that measure are given in their tests."""

import json
from pathlib import Path

import pytest

from talking_model import write_talking_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model without a head."""
    return str(write_talking_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Five prompts of two tasks."""
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"say {n}", "task": "code" if n % 2 else "chat"} for n in range(5)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)
