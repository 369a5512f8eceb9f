"""Backbones change their format and nothing else: GGUF to folder, folder to GGUF."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

import model_files
from export_parts import write_model
from headlong.arrays import FloatArray
from headlong.errors import ArchitectureError, TensorError, TextError
from headlong.export import backbone_folder
from headlong.export.backbone_config import (
    hugging_face_class,
    hugging_face_config,
    hugging_face_names,
)
from headlong.export.backbone_folder import write_backbone_folder
from headlong.export.backbone_gguf import write_backbone_gguf
from headlong.export.conversion import Conversion
from headlong.heads.head_weights import store_array
from headlong.models.model_config import read_config
from headlong.models.rope import make_rope
from headlong.models.rope_scaling import RopeScaling
from headlong.text.gguf_vocabulary import read_gguf_vocabulary
from headlong.text.tokenizer import load_tokenizer
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.progress import LogProgress

DENSE = ("llama", "qwen2", "qwen3")
RULES = {"llama": "smollm", "qwen2": "qwen2", "qwen3": "qwen2"}


def unpack(folder: Path, model: Path) -> Checkpoint:
    """Write a GGUF file as a folder in float32, and open that."""
    write_backbone_folder(folder, open_checkpoint(model), Conversion("float32"), LogProgress())
    return open_checkpoint(folder)


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    """Hold config, numbers and tokens of two checkpoints against each other."""
    assert read_config(one) == read_config(other)
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        np.testing.assert_array_equal(tensor.to_float32(), other.tensors[name].to_float32())
    tokenizers = load_tokenizer(one), load_tokenizer(other)
    assert tokenizers[0].eos_ids == tokenizers[1].eos_ids
    chats = [
        tokenizer.encode_chat([{"role": "user", "content": "hé 12"}]) for tokenizer in tokenizers
    ]
    assert chats[0] == chats[1]


@pytest.mark.parametrize("architecture", DENSE)
def test_there_and_back_is_the_same_model(tmp_path: Path, architecture: str) -> None:
    model = write_model(tmp_path / "tiny.gguf", architecture, pre=RULES[architecture])
    folder = unpack(tmp_path / "folder", model)
    assert_same(open_checkpoint(model), folder)
    write_backbone_gguf(tmp_path / "back.gguf", folder, Conversion("float32"), LogProgress())
    assert_same(open_checkpoint(model), open_checkpoint(tmp_path / "back.gguf"))
    stored = {
        path: {tensor.name: tensor.data for tensor in GGUFReader(path).tensors}
        for path in (model, tmp_path / "back.gguf")
    }
    for name, values in stored[model].items():
        np.testing.assert_array_equal(values, stored[tmp_path / "back.gguf"][name])


@pytest.mark.parametrize("architecture", DENSE)
def test_folder_has_the_names_of_its_publisher(tmp_path: Path, architecture: str) -> None:
    model = write_model(tmp_path / "tiny.gguf", architecture, pre=RULES[architecture])
    unpack(tmp_path / "folder", model)
    published = {tensor.hf_name for tensor in model_files.tiny_tensors(architecture, 0)}
    assert load_file(tmp_path / "folder/model.safetensors").keys() == published
    config = json.loads((tmp_path / "folder/config.json").read_text())
    stated = model_files.hf_config(architecture)
    for key in ("architectures", "model_type", "num_key_value_heads", "tie_word_embeddings"):
        assert config[key] == stated[key], key


def test_folder_names_its_own_class(tmp_path: Path) -> None:
    folder = model_files.write_hf_folder(tmp_path / "folder", "gemma3")
    assert hugging_face_class(open_checkpoint(folder)) == "Gemma3ForCausalLM"
    model = write_model(tmp_path / "tiny.gguf", "qwen3")
    assert hugging_face_class(open_checkpoint(model)) == "Qwen3ForCausalLM"


def test_float16_and_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbone_folder, "MAX_SHARD_BYTES", 40_000)
    checkpoint = open_checkpoint(write_model(tmp_path / "tiny.gguf", "llama"))
    conversion = Conversion("float16")
    write_backbone_folder(tmp_path / "folder", checkpoint, conversion, LogProgress())
    index = json.loads((tmp_path / "folder/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert conversion.share_changed > 0.5
    written = open_checkpoint(tmp_path / "folder")
    for name, tensor in checkpoint.tensors.items():
        halved = tensor.to_float32().astype(np.float16)
        np.testing.assert_array_equal(written.tensors[name].to_float32(), halved)


def test_folder_is_copied_file_by_file(tmp_path: Path) -> None:
    unpack(tmp_path / "folder", write_model(tmp_path / "tiny.gguf", "llama"))
    (tmp_path / "folder/modeling_tiny.py").write_text("raise SystemExit")
    source = open_checkpoint(tmp_path / "folder")
    write_backbone_folder(tmp_path / "copy", source, Conversion("float16"), LogProgress())
    names = {file.name for file in (tmp_path / "folder").iterdir()}
    assert {file.name for file in (tmp_path / "copy").iterdir()} == names - {"modeling_tiny.py"}
    for file in (tmp_path / "copy").iterdir():
        assert file.read_bytes() == (tmp_path / "folder" / file.name).read_bytes()


def with_divisors(checkpoint: Checkpoint, divisors: FloatArray) -> Checkpoint:
    """Return a file whose rotary frequencies are divided."""
    name = "rope_freqs.weight"
    return replace(checkpoint, tensors={**checkpoint.tensors, name: store_array(name, divisors)})


def test_llama_3_frequencies_become_their_rule(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(tmp_path / "tiny.gguf", "llama"))
    vocabulary = read_gguf_vocabulary(checkpoint.metadata)
    config = read_config(checkpoint)
    plain, stretched = (
        make_rope(config.head_dim, 1e6, rule).frequencies
        for rule in (None, RopeScaling("llama3", 32.0))
    )
    keys = {**checkpoint.metadata, "llama.rope.freq_base": 1e6}
    checkpoint = replace(checkpoint, metadata=keys)
    ruled = with_divisors(checkpoint, plain / stretched)
    scaling = hugging_face_config(ruled, vocabulary, "float32")["rope_scaling"]
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 32.0)
    assert "rope_freqs.weight" not in hugging_face_names(ruled, config.num_layers)
    odd = with_divisors(checkpoint, np.linspace(1, 3, config.head_dim // 2, dtype=np.float32))
    with pytest.raises(ArchitectureError, match="divides rotary frequencies"):
        hugging_face_config(odd, vocabulary, "float32")


def test_architectures_without_a_rule_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny.gguf", "gemma3")
    with pytest.raises(ArchitectureError, match=r"'gemma3'.*not turned into"):
        unpack(tmp_path / "folder", model)


def test_qwen2_with_other_tokens_is_refused(tmp_path: Path) -> None:
    """transformers would cut its text by Qwen2's rule, whatever the folder says."""
    model = write_model(tmp_path / "tiny.gguf", "qwen2", pre="deepseek-r1-qwen")
    with pytest.raises(TextError, match="'deepseek-r1-qwen'; transformers reads every qwen2"):
        unpack(tmp_path / "folder", model)


def test_tensors_without_a_place_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(tmp_path / "tiny.gguf", "llama"))
    bias = store_array("blk.0.attn_q.bias", np.zeros(64))
    strange = replace(checkpoint, tensors={**checkpoint.tensors, bias.name: bias})
    with pytest.raises(TensorError, match=r"no place for: blk\.0\.attn_q\.bias"):
        hugging_face_names(strange, read_config(strange).num_layers)


def test_numbers_too_large_for_float16_are_refused() -> None:
    with pytest.raises(TensorError, match="--dtype float32"):
        Conversion("float16").apply(store_array("x", np.array([1e9])))
