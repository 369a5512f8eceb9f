"""MTP heads that models bring along: found under every spelling and in files apart, or refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headlong.arrays import FloatArray
from headlong.errors import HeadError
from headlong.heads.head_files import build_head, find_native_head, load_head
from headlong.heads.head_weights import HeadWeights, store_arrays
from headlong.heads.native_nextn import announced_modules, find_stripped
from headlong.heads.nextn import NextnHead, make_nextn_config
from headlong.heads.nextn_families import NextnSwitches
from headlong.heads.parallel import MetaHeads
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.ops.op_set import Array
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from mlx_files import sanitised, write_float_folder
from model_files import HYBRID, NUM_LAYERS
from native_heads import (
    DEEPSEEK,
    GGUF,
    QWEN,
    SPELLINGS,
    head_arrays,
    spell,
    write_folder_with,
    write_gguf_with,
)
from passages import read_passage
from random_heads import arrays_of, random_meta

DEPTH = NUM_LAYERS["llama"]
"""The block behind the tiny Llama's last one."""


def open_model(path: Path) -> tuple[Checkpoint, Backbone]:
    """Open a checkpoint and load its backbone."""
    checkpoint = open_checkpoint(path)
    return checkpoint, load_backbone(checkpoint, NumpyOps()).backbone


def find(path: Path) -> NextnHead:
    """Find a nextn head that must be there."""
    head = find_native_head(*open_model(path))
    assert isinstance(head, NextnHead)
    return head


def carried(head: NextnHead) -> Array:
    """Run a head over a passage of its backbone and twice more."""
    passage, cache = read_passage(head.backbone), head.make_cache()
    state = head.step(head.enter(head.features(passage.hidden)), [passage.next_ids], [cache])
    for token_id in (3, 4):
        state = head.step(state[-1:], [np.array([token_id])], [cache])
    return state


def directly_built(
    backbone: Backbone, arrays: dict[str, FloatArray], switches: NextnSwitches
) -> NextnHead:
    """Build the head that must have been found."""
    config = make_nextn_config(backbone.config, switches)
    head = build_head(HeadWeights("nextn", config, store_arrays(arrays)), backbone)
    assert isinstance(head, NextnHead)
    return head


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_head_inside_a_folder_is_found(tmp_path: Path, architecture: str, spelling: str) -> None:
    _, plain = open_model(write_folder_with(tmp_path / "plain", architecture, {}))
    arrays = head_arrays(plain.config, architecture)
    extra = spell(arrays, SPELLINGS[spelling], plain.config.num_layers)
    head = find(write_folder_with(tmp_path / "with", architecture, extra))
    switches = NextnSwitches()
    assert head.report.unused_tensors == ()
    assert "not in the table" in head.report.notes[0]
    expected = carried(directly_built(head.backbone, arrays, switches))
    assert carried(head).tobytes() == expected.tobytes()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_head_inside_a_gguf_is_found(tmp_path: Path, architecture: str) -> None:
    """Llama's q/k rows are interleaved in GGUF, those of an MTP block too."""
    _, plain = open_model(write_folder_with(tmp_path / "plain", architecture, {}))
    arrays = head_arrays(plain.config, architecture)
    extra = spell(arrays, GGUF, plain.config.num_layers)
    head = find(write_gguf_with(tmp_path / "model.gguf", architecture, extra))
    assert head.backbone.config.num_layers == plain.config.num_layers
    expected = carried(directly_built(head.backbone, arrays, NextnSwitches()))
    assert carried(head).tobytes() == expected.tobytes()


def test_model_without_a_head_has_none(tmp_path: Path) -> None:
    assert find_native_head(*open_model(write_folder_with(tmp_path, "llama", {}))) is None


def test_repeated_embedding_and_lm_head_are_shared(tmp_path: Path) -> None:
    checkpoint, plain = open_model(write_folder_with(tmp_path / "plain", "llama", {}))
    arrays = head_arrays(plain.config)
    arrays["embed_tokens.weight"] = checkpoint.tensors["token_embd.weight"].to_float32()
    arrays["lm_head.weight"] = checkpoint.tensors["output.weight"].to_float32()
    head = find(write_folder_with(tmp_path / "same", "llama", spell(arrays, DEEPSEEK, DEPTH)))
    assert head.embedding is head.backbone.embedding
    assert head.lm_head is head.backbone.lm_head
    arrays["lm_head.weight"] = arrays["lm_head.weight"] * 2
    head = find(write_folder_with(tmp_path / "other", "llama", spell(arrays, DEEPSEEK, DEPTH)))
    assert head.lm_head is not head.backbone.lm_head


def test_further_modules_are_reported(tmp_path: Path) -> None:
    _, plain = open_model(write_folder_with(tmp_path / "plain", "llama", {}))
    arrays = head_arrays(plain.config)
    extra = spell(arrays, DEEPSEEK, DEPTH) | spell(arrays, DEEPSEEK, DEPTH + 1)
    head = find(write_folder_with(tmp_path / "two", "llama", extra))
    assert len(head.report.unused_tensors) == len(arrays)
    assert "Only the first MTP module" in head.report.notes[1]


def test_stripped_head_is_refused_with_the_list(tmp_path: Path) -> None:
    _, plain = open_model(write_folder_with(tmp_path / "plain", "llama", {}))
    arrays = spell(head_arrays(plain.config), QWEN, DEPTH)
    for name in ("mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight"):
        del arrays[name]
    path = write_folder_with(tmp_path / "stripped", "llama", arrays)
    with pytest.raises(HeadError, match=r"2 tensors .*eh_proj\.weight. is missing.*ffn_up"):
        find(path)


def test_unknown_parts_of_the_layer_are_refused(tmp_path: Path) -> None:
    _, plain = open_model(write_folder_with(tmp_path / "plain", "llama", {}))
    arrays = spell(head_arrays(plain.config), QWEN, DEPTH)
    arrays["mtp.layers.0.odd.weight"] = np.zeros((2, 2), dtype=np.float32)
    path = write_folder_with(tmp_path / "odd", "llama", arrays)
    with pytest.raises(HeadError, match=r"no block here computes: blk\.3\.odd"):
        find(path)


@pytest.mark.parametrize(
    ("metadata", "architecture", "expected"),
    [
        ({"glm4moe.nextn_predict_layers": 1}, "glm4moe", 1),
        ({"text_config": {"mtp_num_hidden_layers": 2}}, "qwen3", 2),
        ({"num_mtp_modules": True}, "x", 0),
    ],
)
def test_announced_modules_are_read_wherever_they_are_said(
    metadata: dict[str, Any], architecture: str, expected: int
) -> None:
    checkpoint = Checkpoint(Path("model"), "gguf", architecture, metadata, {}, 2)
    assert announced_modules(checkpoint) == expected


@pytest.mark.parametrize(
    ("architecture", "metadata", "words"),
    [
        ("glm4moe", {"glm4moe.nextn_predict_layers": 1}, "says it comes with 1 MTP layer, "),
        ("qwen3next", {}, "of this kind are published with MTP layers, "),
        ("llama", {}, None),
    ],
)
def test_stripped_models_are_told(
    architecture: str, metadata: dict[str, Any], words: str | None
) -> None:
    problem = find_stripped(Checkpoint(Path("model"), "gguf", architecture, metadata, {}, 2))
    assert (problem is None) if words is None else (problem and words in problem.problem)


def test_mtp_layers_in_a_file_apart_draft_as_those_inside(tmp_path: Path) -> None:
    """Converters write them to a GGUF of their own; publishers to one more safetensors file."""
    folder = write_folder_with(tmp_path / "plain", "llama", {})
    _, plain = open_model(folder)
    arrays = head_arrays(plain.config)
    expected = carried(directly_built(plain, arrays, NextnSwitches())).tobytes()
    gguf = write_gguf_with(tmp_path / "mtp.gguf", "llama", spell(arrays, GGUF, DEPTH))
    whole = write_folder_with(tmp_path / "whole", "llama", spell(arrays, DEEPSEEK, DEPTH))
    apart = tmp_path / "apart"
    apart.mkdir()
    shutil.copy(folder / "config.json", apart)
    tensors = load_file(whole / "model.safetensors")
    modules = {name: t for name, t in tensors.items() if f"layers.{DEPTH}." in name}
    save_file(modules, apart / "mtp.safetensors")
    for path in (gguf, whole, apart, apart / "mtp.safetensors"):
        head = load_head(path, plain)
        assert isinstance(head, NextnHead)
        assert carried(head).tobytes() == expected


def test_shards_of_the_original_give_their_mtp_layer(tmp_path: Path) -> None:
    """Of the model's files only those with its tensors are needed."""
    _, plain = open_model(write_folder_with(tmp_path / "plain", "llama", {}))
    arrays = head_arrays(plain.config)
    expected = carried(directly_built(plain, arrays, NextnSwitches())).tobytes()
    whole = write_folder_with(tmp_path / "whole", "llama", spell(arrays, DEEPSEEK, DEPTH))
    tensors = list(load_file(whole / "model.safetensors").items())
    (whole / "model.safetensors").unlink()
    for number in range(3):
        name = f"model-0000{number + 1}-of-00003.safetensors"
        save_file(dict(tensors[number::3]), whole / name)
    head = load_head(whole, plain)
    assert isinstance(head, NextnHead)
    assert carried(head).tobytes() == expected


def test_an_mlx_conversion_takes_the_original_s_mtp_layer(tmp_path: Path) -> None:
    """mlx-lm's norms hold 1 + w; those of the original's layer are still to be shifted."""
    _, plain = open_model(write_folder_with(tmp_path / "plain", HYBRID, {}))
    published = load_file(tmp_path / "plain/model.safetensors")
    extra = {
        name.replace("model.layers.3.", "mtp.layers.0."): values
        for name, values in published.items()
        if name.startswith("model.layers.3.")
    }
    hidden = plain.config.hidden_size
    rng = np.random.default_rng(8)
    for name in ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"):
        extra[f"{name}.weight"] = rng.normal(0, 0.2, hidden).astype(np.float32)
    extra["mtp.fc.weight"] = rng.normal(0, 0.1, (hidden, 2 * hidden)).astype(np.float32)
    original = write_folder_with(tmp_path / "original", HYBRID, extra)
    converted = write_float_folder(tmp_path / "mlx", HYBRID, sanitised(HYBRID))
    announced = json.loads((converted / "config.json").read_text())
    announced["mtp_num_hidden_layers"] = 1
    (converted / "config.json").write_text(json.dumps(announced))
    stripped, backbone = open_model(converted)
    problem = find_stripped(stripped)
    assert problem is not None
    assert "--head" in problem.remedy
    head = load_head(original, backbone)
    assert isinstance(head, NextnHead)
    assert carried(head).tobytes() == carried(find(original)).tobytes()


def test_file_apart_for_another_architecture_is_refused(tmp_path: Path) -> None:
    _, plain = open_model(write_folder_with(tmp_path / "plain", "llama", {}))
    extra = spell(head_arrays(plain.config), GGUF, DEPTH)
    gguf = write_gguf_with(tmp_path / "mtp.gguf", "qwen3", extra)
    with pytest.raises(HeadError, match="MTP layer of a qwen3 model; this one is llama"):
        load_head(gguf, plain)
    with pytest.raises(HeadError, match="holds no MTP layers"):
        load_head(write_gguf_with(tmp_path / "none.gguf", "llama", {}), plain)


def test_meta_heads_inside_a_folder_are_found(tmp_path: Path) -> None:
    _, plain = open_model(write_folder_with(tmp_path / "plain", "llama", {}))
    extra = dict(arrays_of(random_meta(plain.config)))
    heads = find_native_head(*open_model(write_folder_with(tmp_path / "meta", "llama", extra)))
    assert isinstance(heads, MetaHeads)
    assert heads.num_depths == 3
