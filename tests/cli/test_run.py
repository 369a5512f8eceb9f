import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headlong.cli.main import main
from headlong.llm import LLM

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the tiny model with something piped in; return the JSON document."""

    def answer(piped: str, *words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
        assert main(["run", model, "--json", "--max-tokens", "3", *words]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return answer


def num_tokens(model: str, text: str, system: str | None = None) -> int:
    """Return how long a prompt of one message is."""
    opening = [] if system is None else [{"role": "system", "content": system}]
    return len(LLM.load(model).encode([*opening, {"role": "user", "content": text}]))


def test_pipe_is_put_behind_the_prompt(model: str, run: Run) -> None:
    document = run("x = 1\n", "explain", "this")
    assert document["num_prompt_tokens"] == num_tokens(model, "explain this\n\nx = 1")


def test_pipe_alone_is_the_prompt(model: str, run: Run) -> None:
    assert run("hello\n")["num_prompt_tokens"] == num_tokens(model, "hello")


def test_options_may_stand_between_model_and_prompt(model: str, run: Run) -> None:
    document = run("", "--system", "Be brief.", "hi", "--seed", "5", "there")
    assert document["num_prompt_tokens"] == num_tokens(model, "hi there", "Be brief.")
    assert document["seed"] == 5


def test_files_come_with_their_names_and_whole(model: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x\n")
    (tmp_path / "b.md").write_text("```\ny\n```\n")
    document = run("", "-f", str(tmp_path / "a.py"), "--file", str(tmp_path / "b.md"), "compare")
    text = "compare\n\na.py:\n```\nx\n```\n\nb.md:\n````\n```\ny\n```\n````"
    assert document["num_prompt_tokens"] == num_tokens(model, text)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "The prompt is empty, and standard input too."),
        (["-f", "/nowhere"], "/nowhere cannot be read: No such file or directory."),
        (["-f", sys.executable], "is not text"),
        (["--resume", "x", "--", "hi"], "--resume was given with a prompt"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    model: str,
    words: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["run", model, *words]) == 1
    assert complaint in capsys.readouterr().err
