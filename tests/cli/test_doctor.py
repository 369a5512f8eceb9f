import json
from pathlib import Path

import pytest
from rich.text import Text

from headlong.cli.main import main
from headlong.doctor import examination, model_checks
from headlong.doctor.finding import Check, Finding
from headlong.doctor.head_checks import read_record
from headlong.heads.head_files import save_head
from headlong.models.model_config import read_config
from headlong.weights.checkpoint import open_checkpoint
from random_heads import random_nextn
from talking_model import write_talking_model


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode as little as can be judged; the machine of a test is nobody's business."""
    monkeypatch.setattr(examination, "_QUICK_BUDGET_S", 0.3)
    monkeypatch.setattr(examination, "_MIN_TOKENS", 16)
    monkeypatch.setattr(examination, "_SPEED_REPEATS", 1)
    monkeypatch.setattr(examination, "_machine_checks", lambda subject: [])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny model without a head."""
    return str(write_talking_model(tmp_path_factory.mktemp("doctor") / "tiny.gguf"))


@pytest.fixture
def head(tiny: str, tmp_path: Path) -> Path:
    """A head for it that drafts nothing of use."""
    weights = random_nextn(read_config(open_checkpoint(Path(tiny))))
    save_head(tmp_path / "head", weights)
    return tmp_path / "head"


def examine(*argv: str) -> int:
    """Run the doctor briefly, on the oracle backend."""
    return main(["doctor", *argv, "--quick", "--backend", "numpy"])


def test_model_without_a_fault_ends_with_zero_and_a_sentence(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(tiny) == 0
    shown = capsys.readouterr().out
    assert "✓ exactness" in shown
    assert "✗" not in shown
    assert "Healthy: 0 faults, " in shown


def test_fault_ends_with_one_and_its_remedy(
    tiny: str, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(tiny, "--head", str(head)) == 1
    shown = capsys.readouterr().out
    assert "✗ drafts           The head is dead: 1.0" in shown
    assert "→ If a check above or below names the cause" in shown
    assert "Not healthy: " in shown
    assert "Best here: no drafts." in shown or "Best K here: " in shown


def test_json_is_the_only_thing_on_standard_output(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(tiny, "--json") == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["healthy"] is True
    assert document["num_warnings"] >= 1  # no head
    assert {"section", "check", "level", "seen", "remedy", "numbers"} == set(
        document["findings"][0]
    )
    assert "provenance" in document
    assert "! head" in captured.err


def test_warnings_count_when_strict(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(tiny, "--strict") == 1


def test_model_that_is_not_there_is_a_fault_not_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(tmp_path / "no.gguf")]) == 1
    captured = capsys.readouterr()
    assert "✗ model" in captured.out
    assert "error:" not in captured.err


def test_head_and_draft_model_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--head", "a", "--draft-model", "b"]) == 1
    assert "Only one of them can draft" in capsys.readouterr().err


def test_recorded_acceptance_is_compared_with_the_next_time(
    tiny: str, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examine(tiny, "--head", str(head), "--record")
    assert "Recorded in" in capsys.readouterr().out
    record = read_record(head)
    assert record.fingerprint is not None
    assert record.probe["acceptance_length"] >= 1
    examine(tiny, "--head", str(head))
    shown = capsys.readouterr().out
    assert "are recorded on these very prompts" in shown
    assert "✓ trained for" in shown


def test_nothing_to_record_is_refused(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(tiny, "--record") == 1
    assert "no head folder" in capsys.readouterr().err


def test_control_characters_of_a_file_do_not_reach_the_terminal(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(subject: object) -> Finding:
        return Check("model").warning("named \x1b]0;gotcha\x07", "rename \x1b[2J it")

    monkeypatch.setattr(model_checks, "check_model", look)
    examine(tiny)
    shown = capsys.readouterr().out
    assert "gotcha" in shown
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown


def test_lines_are_columns_on_a_terminal(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    examine(tiny)
    lines = capsys.readouterr().out.splitlines()
    texts = [Text.from_ansi(line).plain for line in lines]
    assert max(len(text) for text in texts if "head" in text) <= 60
    assert any("\x1b[33m" in line for line in lines)  # a warning is yellow
