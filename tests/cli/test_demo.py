import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console

from headlong.cli import demo
from headlong.cli.answer_view import stream_answer
from headlong.cli.main import main
from headlong.generation import Completion, Generation
from headlong.llm import LLM
from headlong.weights.catalog import CATALOG, find_entry
from talking_model import write_talking_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model."""
    path = tmp_path_factory.mktemp("demo") / "tiny.gguf"
    return str(write_talking_model(path, context_length=1024))


def test_default_model_says_the_same_twice(
    default_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real thing, shortened."""
    assert main(["demo", "--max-tokens", "8", "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["model"] == default_model_path.name
    assert document["same_text"] is True
    code, chat = document["comparisons"]
    assert code["plain"]["token_ids"] == code["mtp"]["token_ids"]
    assert chat["plain"]["token_ids"] == chat["mtp"]["token_ids"]
    assert chat["temperature"] > 0
    assert document["provenance"]["versions"]["numpy"]


def test_table_and_conditions_close_the_demo(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "-m", model, "--max-tokens", "10", "--backend", "numpy"]) == 0
    shown = capsys.readouterr().out
    for text in ("code: plain", "code: with MTP", "chat: plain", "chat: with MTP"):
        assert text in shown
    rows = [line.split() for line in shown.splitlines() if line.strip().endswith("×")]
    assert [row[0] for row in rows] == ["code,", "chat,"]
    assert all("yes" in row for row in rows)
    assert "Acceptance length: mean tokens a round emits" in shown
    assert "tiny.gguf · drafter ngram · backend numpy (numpy was asked for)" in " ".join(
        shown.split()
    )


def test_table_fits_a_narrow_terminal(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["demo", "-m", model, "--max-tokens", "4"]) == 0
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if "chat, T = 0.7" in line]
    assert len(rows) == 1
    assert rows[0].rstrip().endswith("×")
    assert "…" not in rows[0]


def test_different_texts_are_shouted_and_fail(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo is a test of exactness on the user's own machine; it must not hide a failure."""

    calls = count()

    def break_the_law(generation: Generation, console: Console) -> Completion:
        completion = stream_answer(generation, console)
        if next(calls) % 2:  # one of every pair, whether or not drafting paid this time
            return replace(completion, token_ids=(*completion.token_ids[:-1], 0))
        return completion

    monkeypatch.setattr(demo, "stream_answer", break_the_law)
    assert main(["demo", "-m", model, "--max-tokens", "30", "--json"]) == 1
    shown = capsys.readouterr()
    assert "DIFFER from token" in shown.err
    assert json.loads(shown.out)["same_text"] is False


def test_impossible_length_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--max-tokens", "0"]) == 1
    assert "max_tokens is 0." in capsys.readouterr().err


def test_models_made_for_code_are_asked_about_code(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["demo", "--max-tokens", "4", "--backend", "numpy", "--json", "-m"]

    def names() -> list[str]:
        return [one["prompt"] for one in json.loads(capsys.readouterr().out)["comparisons"]]

    assert main([*asked, model]) == 0
    assert names() == ["code", "chat"]
    monkeypatch.setattr(demo, "find_entry", lambda name: find_entry("qwen-coder-1.5b"))
    assert main([*asked, model]) == 0
    assert names() == ["edit", "code", "tests"]
    assert {entry.name for entry in CATALOG if entry.is_coder} == {
        "qwen2.5-coder-0.5b-instruct",
        "qwen2.5-coder-1.5b-instruct",
    }


def test_models_without_a_chat_template_are_given_the_text(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM.load(model)
    llm.tokenizer.chat_template = None
    monkeypatch.setattr(demo, "load_llm", lambda args: llm)
    assert main(["demo", "--max-tokens", "4", "--json"]) == 0
    comparisons = json.loads(capsys.readouterr().out)["comparisons"]
    for prompt, one in zip(demo.PROMPTS, comparisons, strict=True):
        assert one["plain"]["num_prompt_tokens"] == len(llm.encode(prompt.text))
