"""`headlong convert` says what it wrote, and refuses in two sentences."""

import json
from pathlib import Path

import pytest

from golden_models import GOLDEN
from headlong.cli.main import main

MODEL = str(GOLDEN / "tiny-qwen3_5")


def test_convert_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", MODEL, str(tmp_path / "mtp.gguf")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 MTP layer of qwen35: 15 tensors, 66.3 kB" in shown
    assert main(["convert", str(tmp_path / "mtp.gguf"), str(tmp_path / "back"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["num_modules"], told["num_tensors"], told["num_rounded"]) == (1, 15, 0)
    assert (tmp_path / "back" / "config.json").is_file()


def test_rounding_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", MODEL, str(tmp_path / "mtp.gguf"), "--dtype", "bfloat16"]) == 0
    assert "numbers were rounded" in capsys.readouterr().err


def test_model_without_mtp_layers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(GOLDEN / "tiny-deepseek_v2"), str(tmp_path / "mtp.gguf")]) == 1
    assert "holds no MTP layers" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
