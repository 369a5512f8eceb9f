"""What verbs that measure are given in their tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headlong.bench.local_side import LocalSide
from headlong.bench.measure import Question, TimedAnswer
from talking_model import write_talking_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model without a head."""
    return str(write_talking_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder of this test's own."""
    monkeypatch.setenv("HEADLONG_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Five prompts of two tasks."""
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"say {n}", "task": "code" if n % 2 else "chat"} for n in range(5)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let Ctrl-C come in the place of the answer behind so many."""
    answer = LocalSide.answer

    def arrange(num_answers: int) -> None:
        left = iter(range(num_answers))

        def interrupted(self: LocalSide, question: Question) -> TimedAnswer:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return answer(self, question)

        monkeypatch.setattr(LocalSide, "answer", interrupted)

    return arrange
