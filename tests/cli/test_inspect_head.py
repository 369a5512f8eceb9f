"""`headlong inspect HEAD`: what a head is and whom it fits, without a model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from golden_models import GOLDEN
from headlong.cli.main import main
from headlong.export.mtp_files import MtpRequest, convert_mtp_layers
from headlong.heads.head_files import save_head
from headlong.models.model_config import read_config
from headlong.weights.checkpoint import open_checkpoint
from headlong.weights.progress import LogProgress
from random_heads import HEAD_KINDS, random_eagle3, random_head

HEAD = GOLDEN / "speculators-head"
CONFIG = read_config(open_checkpoint(GOLDEN / "tiny-llama3-rope"))


def inspect(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what `headlong inspect --json` tells of a head."""
    assert main(["inspect", str(path), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.parametrize("path", [HEAD, HEAD / "converted.gguf"], ids=lambda path: path.name)
def test_a_head_says_what_it_is_and_whom_it_fits(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for fact in (
        "EAGLE-3 format, one layer that drafts recursively · norm_before_residual, norm_before_fc",
        "models with hidden states of 32, 64 tokens, more than 3 layers",
        "inputs of layers 1, 2, 3",
        "40 tokens",
        "its own embedding and LM head",
        "headlong inspect MODEL --head",
    ):
        assert fact in shown


@pytest.mark.parametrize("kind", [kind for kind in HEAD_KINDS if kind != "meta"])
def test_heads_of_every_kind_tell_their_sizes(
    tmp_path: Path, kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    save_head(tmp_path, random_head(kind, CONFIG))
    told = inspect(tmp_path, capsys)
    assert (told["kind"], told["hidden_size"], told["vocab_size"]) == (kind, 32, 64)
    assert told["draft_vocab_size"] == 32


def test_named_model_and_usual_taps_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = random_eagle3(replace(CONFIG, num_layers=30))
    verifier = {"verifier": {"name_or_path": "someone/model"}}
    save_head(tmp_path, replace(weights, config={**weights.config, "speculators_config": verifier}))
    assert main(["inspect", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "made for someone/model" in shown
    assert "inputs of layers 2, N / 2 and N - 3 of N" in shown
    assert "drafts from all tokens" in shown
    assert "brings its own LM head" in shown


def test_mtp_layers_apart_name_their_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = MtpRequest(GOLDEN / "tiny-qwen3_5", tmp_path / "mtp.gguf")
    convert_mtp_layers(request, LogProgress())
    told = inspect(tmp_path / "mtp.gguf", capsys)
    assert (told["architecture"], told["num_layers"], told["hidden_size"]) == ("qwen35", 4, 32)
    assert (told["kind"], told["own_parts"]) == ("nextn", [])
    told = inspect(GOLDEN / "tiny-gemma4-assistant", capsys)
    assert (told["kind"], told["architecture"], told["hidden_size"]) == ("assistant", "gemma4", 32)


def test_a_damaged_head_is_refused_as_a_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_head(tmp_path, random_eagle3(CONFIG))
    (tmp_path / "model.safetensors").unlink()
    assert main(["inspect", str(tmp_path)]) == 1
    assert "holds no model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny-qwen3_5", "tiny-llama3-rope"])
def test_whole_models_are_described_as_models(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = inspect(GOLDEN / name, capsys)
    assert "heads" in told


def test_model_whose_mtp_layers_have_a_shard_of_their_own_is_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = GOLDEN / "tiny-qwen3_5"
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    shards = {
        "model-00001-of-00002.safetensors": [n for n in tensors if not n.startswith("mtp.")],
        "model-00002-of-00002.safetensors": [n for n in tensors if n.startswith("mtp.")],
    }
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, tmp_path / file)
    weight_map = {name: file for file, names in shards.items() for name in names}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    told = inspect(tmp_path, capsys)
    assert [head["source"] for head in told["heads"]] == ["inside the model"]
