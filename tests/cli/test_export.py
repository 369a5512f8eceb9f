"""`headlong export` writes, says how to start the engine, and refuses in two sentences."""

import json
from pathlib import Path
from typing import get_args

import pytest

from export_parts import Pair, write_pair
from headlong.cli.main import main
from headlong.cli.verbs import make_verb_parser
from headlong.export.targets import TargetName
from headlong.heads.head_weights import FloatType


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A tiny model and a head for it."""
    return write_pair(tmp_path_factory.mktemp("export"))


def test_export_says_how_to_start_the_engine(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(pair.model), "--head", str(pair.head)]
    assert main(["export", str(tmp_path / "out"), "--to", "vllm", "--backbone", *model]) == 0
    told = capsys.readouterr()
    assert "vllm serve backbone --dtype float32" in told.out
    assert "writing the backbone" in told.err
    assert main(["export", str(tmp_path / "out"), "--to", "vllm", *model]) == 1
    assert "is there already" in capsys.readouterr().err


def test_json_names_command_files_and_notes(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(pair.model), "--head", str(pair.head)]
    arguments = ["export", str(tmp_path / "out"), "--to", "sglang", "--dtype", "bfloat16", "--json"]
    assert main([*arguments, *model]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["engine"] == "sglang"
    assert "--speculative-num-draft-tokens 5" in told["command"]
    assert [*told["files"]] == ["head/model.safetensors"]
    assert told["shares_changed"]["head"] > 0
    assert any("Prefer float16" in note for note in told["notes"])


def test_options_are_those_of_the_types() -> None:
    actions = {action.dest: action for action in make_verb_parser("export")._actions}
    assert set(actions["dtype"].choices or ()) == set(get_args(FloatType))
    assert set(actions["to"].choices or ()) == set(get_args(TargetName))
