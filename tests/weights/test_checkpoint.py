"""Checkpoints: every kind of file opens into the same thing, or says why it does not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from headlong.errors import CheckpointError, TensorError
from headlong.weights.checkpoint import open_checkpoint
from model_files import (
    BOTH_FORMATS,
    LATENT,
    NUM_LAYERS,
    hf_config,
    tiny_tensors,
    write_gguf,
    write_hf_folder,
)
from raw_gguf import UINT32, gguf_file, key_value, u32


def refusal(path: Path) -> CheckpointError:
    """Return the error a path gives, after checking that it names the place and a remedy."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert str(path) in caught.value.problem or str(path.parent) in caught.value.problem
    assert caught.value.remedy
    return caught.value


# Latent attention is cut into other tensors: tests/models/test_deepseek2.py compares the models.
@pytest.mark.parametrize("architecture", [name for name in BOTH_FORMATS if name != LATENT])
def test_gguf_and_folder_hold_the_same_weights(tmp_path: Path, architecture: str) -> None:
    gguf = open_checkpoint(write_gguf(tmp_path / "m.gguf", architecture))
    folder = open_checkpoint(write_hf_folder(tmp_path / "m", architecture, num_shards=3))
    assert (gguf.format, folder.format) == ("gguf", "safetensors")
    assert gguf.architecture == folder.architecture == architecture
    # What config.json says of rotary positions, llama.cpp's converter writes as a tensor.
    assert gguf.tensors.keys() - {"rope_freqs.weight"} == folder.tensors.keys()
    for name, tensor in folder.tensors.items():
        assert tensor.name == gguf.tensors[name].name == name
        assert np.array_equal(tensor.to_float32(), gguf.tensors[name].to_float32())


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_packed_gguf_stays_packed(tmp_path: Path, kind: str) -> None:
    packed = GGMLQuantizationType[kind]
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", "llama", matrix_type=packed))
    weights = {tensor.gguf_name: tensor.values for tensor in tiny_tensors("llama")}
    for name, tensor in checkpoint.tensors.items():
        assert tensor.type == (packed if weights[name].ndim == 2 else GGMLQuantizationType.F32)
        np.testing.assert_allclose(tensor.to_float32(), weights[name], atol=0.2)


def test_metadata_is_what_the_file_says(tmp_path: Path) -> None:
    folder = open_checkpoint(write_hf_folder(tmp_path / "m", "gemma3"))
    assert folder.metadata == hf_config("gemma3")
    gguf = open_checkpoint(write_gguf(tmp_path / "m.gguf", "llama", extra_metadata={"a.b": ["x"]}))
    assert gguf.metadata["llama.block_count"] == 3
    assert gguf.metadata["a.b"] == ["x"]


def test_unknown_architecture_passes_through(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "m", "llama")
    (folder / "config.json").write_text('{"model_type": "brand_new"}')
    checkpoint = open_checkpoint(folder)
    assert checkpoint.architecture == "brand_new"
    assert "model.norm.weight" in checkpoint.tensors


def test_text_part_of_a_multimodal_folder_is_usable(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "m", "gemma3")
    plain = open_checkpoint(folder)
    text = {f"language_model.{k}": v for k, v in load_file(folder / "model.safetensors").items()}
    vision = "vision_tower.vision_model.encoder.layers.0.layer_norm1.weight"
    save_file({**text, vision: np.zeros(4, np.float32)}, folder / "model.safetensors")
    config = {"model_type": "gemma3", "text_config": hf_config("gemma3")}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.architecture == "gemma3"
    assert checkpoint.tensors.keys() == {*plain.tensors, vision}
    assert not checkpoint.tensors[vision].to_float32().any()
    for name, tensor in plain.tensors.items():
        assert np.array_equal(checkpoint.tensors[name].to_float32(), tensor.to_float32())


def test_head_tensors_beside_the_backbone_are_kept(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "m", "qwen3")
    extra = {"mtp.fc.weight": np.ones((2, 2), np.float32)}
    save_file({**load_file(folder / "model.safetensors"), **extra}, folder / "model.safetensors")
    name = f"blk.{NUM_LAYERS['qwen3']}.nextn.eh_proj.weight"
    assert name in open_checkpoint(folder).tensors


@pytest.mark.parametrize("num_shards", [1, 2])
def test_safetensors_file_stands_for_its_folder(tmp_path: Path, num_shards: int) -> None:
    folder = write_hf_folder(tmp_path / "m", "qwen2", num_shards=num_shards)
    file = next(folder.glob("*.safetensors"))
    assert open_checkpoint(file).path == folder


def test_safetensors_file_of_another_model_is_refused(tmp_path: Path) -> None:
    """Opening the folder instead would answer with a model the caller did not name."""
    folder = write_hf_folder(tmp_path / "m", "qwen2")
    save_file({"w": np.ones(1, np.float32)}, folder / "adapter.safetensors")
    assert "adapter.safetensors is not one of" in refusal(folder / "adapter.safetensors").problem


def test_lone_safetensors_file_asks_for_its_config(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "m", "qwen2")
    (folder / "config.json").unlink()
    assert "no config.json beside it" in refusal(folder / "model.safetensors").problem


def test_gguf_is_known_by_its_content(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "joined.bin", "qwen2")
    assert open_checkpoint(path).format == "gguf"


def test_absent_path_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere").problem


def test_path_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path / ("x" * 5000))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "model.pt"])
def test_pickled_weights_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_bytes(b"\x80\x04")
    for path in (tmp_path, tmp_path / name):
        error = refusal(path)
        assert "pickle" in error.problem
        assert "safetensors" in error.remedy


def test_folder_without_config_names_its_ggufs(tmp_path: Path) -> None:
    assert "holds no config.json" in refusal(tmp_path).problem
    write_gguf(tmp_path / "m.gguf", "qwen2")
    assert "m.gguf" in refusal(tmp_path).remedy


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "neither model.safetensors nor" in refusal(tmp_path).problem


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", "is empty"),
        ("not json", "not valid JSON"),
        ("[1, 2]", "not an object"),
        ("{}", "model_type is None"),
        ('{"model_type": ["llama"]}', "model_type is ['llama']"),
    ],
)
def test_bad_config_is_refused(tmp_path: Path, config: str, words: str) -> None:
    folder = write_hf_folder(tmp_path / "m", "llama")
    (folder / "config.json").write_text(config)
    assert words in refusal(folder).problem


def test_missing_shards_are_named(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "m", "llama", num_shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    error = refusal(folder)
    assert "lacks 1 of 3 shards: ['model-00002-of-00003.safetensors']" in error.problem
    assert "Download the missing files" in error.remedy


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "/etc/x.safetensors",
        "a\\b.safetensors",
        "x" * 300 + ".safetensors",
        "\ud800.safetensors",
        "model.bin",
        "",
        5,
        None,
        ["a.safetensors"],
    ],
)
def test_shard_outside_the_folder_is_refused(tmp_path: Path, shard: Any) -> None:
    folder = write_hf_folder(tmp_path / "m", "llama", num_shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": shard}}))
    assert "which is no safetensors file name" in refusal(folder).problem


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "nonsense"])
def test_bad_index_is_refused(tmp_path: Path, index: str) -> None:
    folder = write_hf_folder(tmp_path / "m", "llama")
    (folder / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in refusal(folder).problem


def test_tensor_absent_from_its_shard_is_named(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "m", "llama", num_shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    del tensors[name]
    save_file(tensors, shard)
    error = refusal(folder)
    assert isinstance(error, TensorError)
    assert f"{name!r} is not in {shard.name}" in error.problem


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "m", "llama", num_shards=2)
    first, second = sorted(folder.glob("*.safetensors"))
    twice = dict([next(iter(load_file(first).items()))])
    save_file({**load_file(second), **twice}, second)
    assert "both hold" in refusal(folder).problem


def test_gguf_without_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file())
    assert "general.architecture is None" in refusal(path).problem
    path.write_bytes(gguf_file([key_value("general.architecture", UINT32, u32(1))]))
    assert "general.architecture is 1" in refusal(path).problem


def test_layout_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama")
    content = path.read_bytes()
    key = b"llama.attention.head_count"
    at = content.index(key + u32(UINT32)) + len(key) + 4
    path.write_bytes(content[:at] + u32(7) + content[at + 4 :])
    assert "7 heads" in refusal(path).problem
