"""What is exported drafts as it did, and other engines find their own keys in it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file

import headlong
from export_parts import TAPS, Pair
from headlong.errors import HeadError, SourceError
from headlong.export.exporter import ExportRequest, export
from headlong.export.targets import TARGETS, TargetName
from headlong.heads.head_files import read_head_weights, save_head
from headlong.heads.head_weights import HeadWeights, store_array
from headlong.llm import LLM
from headlong.weights.progress import LogProgress

MESSAGES = [{"role": "user", "content": "hello hello 12"}]


def request(pair: Pair, out: Path, target: TargetName = "vllm", **changes: Any) -> ExportRequest:
    """A request for all of the tiny pair."""
    whole = ExportRequest(target, out, str(pair.model), pair.head, has_backbone=True)
    return replace(whole, **changes)


def drafts(model: Path, head: Path) -> tuple[tuple[int, ...], list[int], int]:
    """Return what the model says, and what the head drafted meanwhile."""
    llm = LLM.load(model, head=head, drafter="head", quant="f32", head_quant="f32", backend="numpy")
    completion = llm.generate(MESSAGES, max_tokens=24, mtp=3, temperature=0, ignore_eos=True)
    stats = completion.stats
    return completion.token_ids, stats.accepted_at_depth, stats.rounds


@pytest.mark.parametrize("name", TARGETS)
def test_exported_pair_drafts_as_the_original(pair: Pair, tmp_path: Path, name: TargetName) -> None:
    out, target = tmp_path / "out", TARGETS[name]
    exported = export(request(pair, out, name, float_type="float32"), LogProgress())
    model, head = out / target.backbone_name, out / target.head_name
    assert drafts(model, head) == drafts(pair.model, pair.head)
    assert exported.shares_changed == {"head": 0.0, "backbone": 0.0}
    own, read = read_head_weights(pair.head), read_head_weights(head)
    assert own.vocabulary is not None
    assert read.vocabulary is not None
    np.testing.assert_array_equal(own.vocabulary, read.vocabulary)


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_folder_serves_vllm_and_sglang(pair: Pair, tmp_path: Path, target: TargetName) -> None:
    export(request(pair, tmp_path / "out", target), LogProgress())
    config = json.loads((tmp_path / "out/head/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == list(TAPS)
    sglang = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert [layer + 1 for layer in sglang] == list(TAPS)
    assert config["draft_vocab_size"] == pair.config.vocab_size // 2
    assert config["vocab_size"] == pair.config.vocab_size
    assert config["rope_theta"] == pair.config.rope_theta
    assert config["norm_before_residual"] is False
    assert config["tie_word_embeddings"] is False
    tensors = load_file(tmp_path / "out/head/model.safetensors")
    assert "midlayer.hidden_norm.weight" in tensors
    assert "embed_tokens.weight" not in tensors
    ids = tensors["d2t"] + np.arange(len(tensors["d2t"]))
    np.testing.assert_array_equal(np.flatnonzero(tensors["t2d"]), np.sort(ids))


def test_speculators_folder_says_what_its_format_would_take_otherwise(
    pair: Pair, tmp_path: Path
) -> None:
    export(request(pair, tmp_path / "out", "speculators"), LogProgress())
    config = json.loads((tmp_path / "out/head/config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == list(TAPS)
    verifier = {"name_or_path": "backbone", "architectures": ["LlamaForCausalLM"]}
    assert config["speculators_config"]["verifier"] == verifier
    layer = config["transformer_layer_config"]
    assert layer["num_hidden_layers"] == 1
    assert layer["hidden_size"] == pair.config.hidden_size
    assert "hidden_size" not in config
    tensors = load_file(tmp_path / "out/head/model.safetensors")
    assert "layers.0.hidden_norm.weight" in tensors
    assert not [name for name in tensors if name.startswith("midlayer")]


def test_exported_heads_are_exported_again(pair: Pair, tmp_path: Path) -> None:
    """What one engine's file says is enough for another's."""
    head, place = pair.head, tmp_path / "original"
    for name in ("llama.cpp", "speculators", "sglang"):
        place = tmp_path / name
        again = request(pair, place, name, head=head, has_backbone=False, float_type="float32")
        export(again, LogProgress())
        head = place / TARGETS[name].head_name
    assert drafts(pair.model, head) == drafts(pair.model, pair.head)
    config = json.loads((head / "config.json").read_text())
    assert "speculators_config" not in config
    assert config["eagle_aux_hidden_state_layer_ids"] == list(TAPS)


def test_gguf_has_the_keys_that_llama_cpp_asks_for(pair: Pair, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(request(pair, out, "llama.cpp", float_type="float16"), LogProgress())
    export(request(pair, tmp_path / "copied", "llama.cpp"), LogProgress())
    assert (tmp_path / "copied/backbone.gguf").read_bytes() == pair.model.read_bytes()
    reader = GGUFReader(out / "head.gguf")
    keys = {name: field.contents() for name, field in reader.fields.items()}
    assert keys["general.architecture"] == "eagle3"
    assert keys["eagle3.block_count"] == 1
    assert keys["eagle3.target_layers"] == list(TAPS)
    assert keys["eagle3.target_hidden_size"] == pair.config.hidden_size
    assert keys["eagle3.norm_before_residual"] is False
    assert keys["eagle3.norm_before_fc"] is False
    assert keys["eagle3.vocab_size"] == pair.config.vocab_size
    backbone = {name: f.contents() for name, f in GGUFReader(pair.model).fields.items()}
    tokens = [name for name in backbone if name.startswith("tokenizer.")]
    assert tokens
    assert {name: keys[name] for name in tokens} == {name: backbone[name] for name in tokens}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    own = read_head_weights(pair.head)
    assert own.vocabulary is not None
    np.testing.assert_array_equal(tensors["d2t"].data, own.vocabulary)
    assert tensors["d2t"].tensor_type.name == "I64"
    assert tensors["blk.0.attn_norm_2.weight"].tensor_type.name == "F32"
    assert tensors["fc.weight"].tensor_type.name == "F16"
    kinds = {tensor.tensor_type.name for tensor in GGUFReader(out / "backbone.gguf").tensors}
    assert kinds == {"F16", "F32"}
    # A head's rows (half, i) lie as (i, half).
    heads, size = pair.config.num_kv_heads, pair.config.head_dim
    rows = own.tensors["midlayer.self_attn.k_proj.weight"].to_float32()
    expected = rows.reshape(heads, 2, size // 2, -1).swapaxes(1, 2).reshape(rows.shape)
    stored = tensors["blk.0.attn_k.weight"].data
    np.testing.assert_array_equal(stored, expected.astype(np.float16))


def test_shipped_head_is_exported_number_for_number(
    default_model_path: Path, tmp_path: Path
) -> None:
    """It lies in 4 bits, which float32 holds exactly and float16 to half its last place."""
    model = str(default_model_path)
    usual = export(ExportRequest("vllm", tmp_path / "usual", model), LogProgress())
    assert usual.float_type == "float16"
    assert usual.source.is_of_this_model is True
    places: dict[TargetName, str] = {"vllm": "head", "llama.cpp": "head.gguf"}
    for target, head in places.items():
        out = tmp_path / target
        export(ExportRequest(target, out, model, float_type="float32"), LogProgress())
        own, read = (read_head_weights(path) for path in (usual.source.path, out / head))
        rounded = read_head_weights(tmp_path / "usual/head")
        assert own.tensors.keys() == read.tensors.keys() == rounded.tensors.keys()
        assert own.config["headlong_quant"] == read.config["headlong_quant"] == "q4"
        assert "quantization" not in rounded.config
        for name, tensor in own.tensors.items():
            values = tensor.to_float32()
            np.testing.assert_array_equal(read.tensors[name].to_float32(), values)
            halves = values.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(rounded.tensors[name].to_float32(), halves)


def test_bfloat16_is_written_with_a_warning(pair: Pair, tmp_path: Path) -> None:
    exported = export(request(pair, tmp_path / "out", float_type="bfloat16"), LogProgress())
    notes = " ".join(exported.notes)
    assert "of the head's numbers" in notes
    assert "Prefer float16" in notes
    assert exported.shares_changed["head"] > 0.5
    assert "bfloat16" in (tmp_path / "out/README.md").read_text()


def test_nothing_is_overwritten_and_nothing_half_written_stays(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("keep")
    with pytest.raises(SourceError, match="is there already"):
        export(request(pair, out), LogProgress())
    assert [file.name for file in out.iterdir()] == ["mine.txt"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headlong.export.backbone_folder.write_safetensors", full)
    with pytest.raises(SourceError, match="No space left on device"):
        export(request(pair, tmp_path / "other"), LogProgress())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("place", ["file/out", "file/sub/out", 300 * "x"])
def test_places_that_cannot_be_are_refused(pair: Pair, tmp_path: Path, place: str) -> None:
    """They were told as bugs."""
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot be written"):
        export(request(pair, tmp_path / place), LogProgress())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_current_folder_is_refused_by_that_name(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be replaced by another; the system said that it was busy."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="is the current folder"):
        export(request(pair, Path()), LogProgress())


def test_shares_are_told_of_what_was_written(pair: Pair, tmp_path: Path) -> None:
    """Without a backbone it said that none of the backbone's numbers had changed."""
    exported = export(request(pair, tmp_path / "out", has_backbone=False), LogProgress())
    assert list(exported.shares_changed) == ["head"]


def test_head_that_does_not_read_back_is_refused(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad_disk(path: Path, weights: HeadWeights) -> None:
        norm = store_array("norm.weight", np.ones(pair.config.hidden_size))
        save_head(path, replace(weights, tensors={**weights.tensors, "norm.weight": norm}))

    monkeypatch.setattr("headlong.export.head_folder.save_head", bad_disk)
    with pytest.raises(HeadError, match="does not read back"):
        export(request(pair, tmp_path / "out"), LogProgress())
    assert not [*tmp_path.iterdir()]


def test_readme_tells_how_to_start_and_what_to_expect(pair: Pair, tmp_path: Path) -> None:
    head = tmp_path / "head"
    save_head(head, read_head_weights(pair.head))
    acceptance = {"temperature_0": {"code": [1.5, 2.0, 2.25, 2.5, 2.6, 2.7, 2.8, 2.9]}}
    record = {"acceptance": acceptance, "backbone_fingerprint": "another"}
    (head / "run.json").write_text(json.dumps(record))
    for name, target in TARGETS.items():
        out = tmp_path / name
        exported = export(request(pair, out, name, head=head), LogProgress())
        text = (out / "README.md").read_text()
        assert exported.command in text
        assert target.title in text
        assert target.tried in text
        assert ("samples wrongly while it drafts" in text) == exported.command.startswith("vllm")
        assert "--dtype float32" in text or target.takes_gguf
        assert "| code | 1.50 | 2.00 | 2.25 | 2.50 | 2.70 | 2.90 |" in text
        assert "trained on another model" in text
        assert f"Made by Headlong {headlong.__version__} from" in text
        for file, digest in exported.hashes.items():
            assert (out / file).is_file()
            assert digest in text
    alone = request(pair, tmp_path / "alone", has_backbone=False)
    export(alone, LogProgress())
    text = (tmp_path / "alone/README.md").read_text()
    assert "--backbone writes them" in text
    assert "headlong eval-head" in text
