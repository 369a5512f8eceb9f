"""Heads that no other engine runs are refused with the reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_files
from export_parts import Pair
from headlong.errors import HeadError
from headlong.export.exporter import ExportRequest, export
from headlong.export.targets import TARGETS, TargetName
from headlong.heads.eagle3 import Eagle3Head
from headlong.heads.head_files import build_head, read_head_weights, save_head
from headlong.heads.head_weights import HeadKind, store_array
from headlong.models.rope import make_rope
from headlong.weights.progress import LogProgress
from native_heads import DEEPSEEK, head_arrays, spell, write_folder_with
from random_heads import random_head


def refusal(pair: Pair, tmp_path: Path, **changes: Any) -> str:
    """Export, expect to be refused, and return what is said."""
    request = ExportRequest("vllm", tmp_path / "out", str(pair.model), pair.head)
    with pytest.raises(HeadError) as error:
        export(replace(request, **changes), LogProgress())
    assert not (tmp_path / "out").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("medusa", "parallel"), ("meta", "parallel"), ("nextn", "carries a state between depths")],
)
def test_heads_of_other_kinds_are_refused(
    pair: Pair, tmp_path: Path, kind: HeadKind, reason: str
) -> None:
    save_head(tmp_path / "head", random_head(kind, pair.config))
    said = refusal(pair, tmp_path, head=tmp_path / "head")
    assert f"kind {kind}" in said
    assert reason in said


def test_model_without_a_head_is_refused(pair: Pair, tmp_path: Path) -> None:
    assert "No head comes with tiny.gguf" in refusal(pair, tmp_path, head=None)


def test_mtp_layers_inside_a_model_are_not_exported(pair: Pair, tmp_path: Path) -> None:
    inside = spell(head_arrays(pair.config), DEEPSEEK, model_files.NUM_LAYERS["llama"])
    model = write_folder_with(tmp_path / "model", "llama", inside)
    said = refusal(pair, tmp_path, model=str(model), head=None)
    assert "MTP layers inside" in said


def test_head_with_a_window_is_refused(pair: Pair, tmp_path: Path) -> None:
    weights = read_head_weights(pair.head)
    window = {"layer_types": ["sliding_attention"], "sliding_window": 8}
    save_head(tmp_path / "head", replace(weights, config={**weights.config, **window}))
    said = refusal(pair, tmp_path, head=tmp_path / "head")
    assert "it looks back 8 positions only" in said


def test_layers_beyond_the_shared_format_are_refused(pair: Pair, tmp_path: Path) -> None:
    weights = read_head_weights(pair.head)
    size = {"q": pair.config.num_heads, "k": pair.config.num_kv_heads}
    size["v"] = size["k"]
    biases = {
        name: store_array(name, np.zeros(size[part] * pair.config.head_dim))
        for part in "qkv"
        for name in [f"midlayer.self_attn.{part}_proj.bias"]
    }
    save_head(tmp_path / "head", replace(weights, tensors={**weights.tensors, **biases}))
    said = refusal(pair, tmp_path, head=tmp_path / "head")
    assert "it has midlayer.self_attn.k_proj.bias" in said


@pytest.mark.parametrize(
    ("target", "switch"),
    [("sglang", "norm_before_residual"), ("llama.cpp", "norm_output")],
)
def test_variants_that_an_engine_does_not_compute_are_refused(
    pair: Pair, tmp_path: Path, target: TargetName, switch: str
) -> None:
    weights = read_head_weights(pair.head)
    save_head(tmp_path / "head", replace(weights, config={**weights.config, switch: True}))
    said = refusal(pair, tmp_path, head=tmp_path / "head", target=target)
    assert f"{TARGETS[target].title} cannot run" in said
    assert f"it has {switch}" in said
    request = ExportRequest("vllm", tmp_path / "out", str(pair.model), tmp_path / "head")
    export(request, LogProgress())
    assert read_head_weights(tmp_path / "out/head").config[switch] is True


def test_stretched_positions_reach_llama_cpp(pair: Pair, tmp_path: Path) -> None:
    weights = read_head_weights(pair.head)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling = {**llama3, "original_max_position_embeddings": 32}
    config = {**weights.config, "rope_scaling": scaling}
    save_head(tmp_path / "head", replace(weights, config=config))
    request = ExportRequest("llama.cpp", tmp_path / "out", str(pair.model), tmp_path / "head")
    exported = export(request, LogProgress())
    head = build_head(read_head_weights(tmp_path / "out/head.gguf"), exported.source.backbone)
    assert isinstance(head, Eagle3Head)
    read, own = (one.layer.attention.rope.frequencies for one in (head, exported.source.head))
    np.testing.assert_allclose(read, own, rtol=1e-6)
    assert own.min() < 0.2 * make_rope(16, pair.config.rope_theta).frequencies.min()


def test_tensors_that_nothing_reads_stay_behind(pair: Pair, tmp_path: Path) -> None:
    """vLLM stops at a name it does not know."""
    weights = read_head_weights(pair.head)
    unread = store_array("midlayer.self_attn.rotary_emb.inv_freq", np.ones(8))
    tensors = {**weights.tensors, unread.name: unread}
    save_head(tmp_path / "head", replace(weights, tensors=tensors))
    request = ExportRequest("vllm", tmp_path / "out", str(pair.model), tmp_path / "head")
    export(request, LogProgress())
    assert read_head_weights(tmp_path / "out/head").tensors.keys() == weights.tensors.keys()


def test_config_is_closed_with_the_backbones_numbers(pair: Pair, tmp_path: Path) -> None:
    """A head that says little runs here with the backbone's numbers; others would guess."""
    weights = read_head_weights(pair.head)
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "vocab_size": pair.config.vocab_size}
    save_head(tmp_path / "head", replace(weights, config=taps))
    request = ExportRequest("vllm", tmp_path / "out", str(pair.model), tmp_path / "head")
    export(request, LogProgress())
    config = read_head_weights(tmp_path / "out/head").config
    assert config["rope_theta"] == pair.config.rope_theta
    assert config["rms_norm_eps"] == pair.config.norm_eps
    assert config["num_key_value_heads"] == pair.config.num_kv_heads
