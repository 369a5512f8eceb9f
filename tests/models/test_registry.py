"""From a checkpoint to a backbone, with the books kept."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headlong.errors import ArchitectureError, TensorError
from headlong.models import registry
from headlong.models.registry import load_backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import open_checkpoint
from model_files import BOTH_FORMATS, write_gguf, write_hf_folder


@pytest.mark.parametrize("architecture", BOTH_FORMATS)
def test_gguf_and_folder_give_the_same_logits(architecture: str, tmp_path: Path) -> None:
    ids = np.arange(5, 25)
    logits = []
    for path in (
        write_gguf(tmp_path / "m.gguf", architecture),
        write_hf_folder(tmp_path / "m", architecture),
    ):
        loaded = load_backbone(open_checkpoint(path), NumpyOps())
        assert loaded.report.left_over == ()
        backbone = loaded.backbone
        logits.append(backbone.logits(backbone.forward([ids], [backbone.make_cache()]).normed))
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4, rtol=1e-4)


def test_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    write_hf_folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    with pytest.raises(ArchitectureError, match="'mamba'") as caught:
        load_backbone(open_checkpoint(tmp_path), NumpyOps())
    assert ", ".join(sorted(registry.ARCHITECTURES)) in str(caught.value)


def test_all_missing_tensors_are_listed_at_once(tmp_path: Path) -> None:
    write_hf_folder(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorError, match=r"blk\.1\.ffn_up\.weight") as caught:
        load_backbone(open_checkpoint(tmp_path), NumpyOps())
    assert "output_norm.weight" in str(caught.value)


def test_missing_biases_of_qwen2_are_named(tmp_path: Path) -> None:
    write_hf_folder(tmp_path, "qwen2")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.self_attn.k_proj.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorError, match=r"blk\.0\.attn_k\.bias"):
        load_backbone(open_checkpoint(tmp_path), NumpyOps())


def test_left_over_and_head_tensors_are_reported(tmp_path: Path) -> None:
    write_hf_folder(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    extra = np.ones((4, 4), dtype=np.float32)
    save_file(
        {**tensors, "mtp.fc.weight": extra, "surprise.weight": extra},
        tmp_path / "model.safetensors",
    )
    report = load_backbone(open_checkpoint(tmp_path), NumpyOps()).report
    assert set(report.left_over) == {"blk.3.nextn.eh_proj.weight", "surprise.weight"}
    assert report.head_tensors == ("blk.3.nextn.eh_proj.weight",)
