"""DeepSeek's architecture from every layout its weights come in."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headlong.arrays import FloatArray
from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.registry import load_backbone
from headlong.ops.blocks import Experts, GatedMlp, LatentAttention
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import open_checkpoint
from latent_files import latent_gguf
from model_files import LATENT, hf_config, write_gguf, write_hf_folder

IDS = np.random.default_rng(1).integers(3, 90, 20)


def logits(path: Path) -> FloatArray:
    """Load a model on the oracle backend and read a prompt."""
    backbone = load_backbone(open_checkpoint(path), NumpyOps()).backbone
    return backbone.logits(backbone.forward([IDS], [backbone.make_cache()]).normed)


def edited_folder(tmp_path: Path, changes: Mapping[str, Any]) -> Path:
    """Write the tiny model with other numbers in config.json."""
    folder = write_hf_folder(tmp_path / "model", LATENT)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_first_layers_are_dense_and_the_others_have_experts(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf_folder(tmp_path, LATENT))
    loaded = load_backbone(checkpoint, NumpyOps())
    kinds = [(type(layer.mixer), type(layer.channel)) for layer in loaded.backbone.layers]
    assert kinds == [(LatentAttention, GatedMlp)] + 2 * [(LatentAttention, Experts)]
    assert loaded.report.left_over == ()


def test_split_and_turned_matrices_of_gguf_files_are_the_same(tmp_path: Path) -> None:
    """llama.cpp's converter cuts kv_b in two, turns one half and stacks the experts."""
    folder = write_hf_folder(tmp_path / "hf", LATENT)
    path = write_gguf(tmp_path / "split.gguf", LATENT)
    assert load_backbone(open_checkpoint(path), NumpyOps()).report.left_over == ()
    assert np.array_equal(logits(path), logits(folder))


@pytest.mark.parametrize("name", ["F32", "BF16"])
def test_unsplit_matrices_of_older_gguf_files_are_the_same(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = GGMLQuantizationType[name]
    split = logits(write_gguf(tmp_path / "split.gguf", LATENT, matrix_type=kind))
    monkeypatch.setattr("model_files.latent_gguf", lambda named, _: stacked_only(named))
    unsplit = logits(write_gguf(tmp_path / "unsplit.gguf", LATENT, matrix_type=kind))
    assert np.array_equal(unsplit, split)


def stacked_only(named: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Stack experts, but leave kv_b whole, as files of 2024 have it."""
    whole = {name: values for name, values in named.items() if "attn_kv_b" in name}
    rest = {name: values for name, values in named.items() if name not in whole}
    return latent_gguf(rest, 0) | whole


def test_rotary_pairs_that_lie_half_by_half_are_another_model(tmp_path: Path) -> None:
    plain = logits(write_hf_folder(tmp_path / "hf", LATENT))
    other = logits(edited_folder(tmp_path, {"rope_interleave": False}))
    assert np.abs(plain - other).max() > 0.1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"kv_lora_rank": 7}, "must be even"),
        ({"qk_nope_head_dim": 0}, "Latent attention"),
        ({"kv_lora_rank": 2**20}, "wider than 4096"),
        ({"v_head_dim": 2**40}, "Latent attention"),
        ({"qk_rope_head_dim": "many"}, "qk_rope_head_dim"),
    ],
)
def test_sizes_that_cannot_be_are_refused(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(CheckpointError, match=match):
        logits(edited_folder(tmp_path, changes))


KEYS = (
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("num_attention_heads", "n_routed_experts", "n_group", "topk_group", "num_experts_per_tok"),
    *("moe_intermediate_size", "routed_scaling_factor", "scoring_func", "rope_scaling"),
)
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, 1, 2, 3, 16, 2**12, 2**31, 2**63, -1, 0.5, "x", [], {}, True]
)


@settings(
    max_examples=200,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_numbers_of_any_kind_are_read_or_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = tmp_path / "model"
    if not folder.exists():
        write_hf_folder(folder, LATENT)
    (folder / "config.json").write_text(json.dumps(hf_config(LATENT) | changes))
    with contextlib.suppress(CheckpointError):
        load_backbone(open_checkpoint(folder), NumpyOps())


def test_kinds_that_are_not_computed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="kv_lora_rank"):
        logits(edited_folder(tmp_path / "plain", {"kv_lora_rank": None}))
    with pytest.raises(ArchitectureError, match="groups of experts"):
        logits(edited_folder(tmp_path / "v2", {"topk_method": "group_limited_greedy"}))


def test_shares_are_not_renormalised_where_gguf_metadata_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's converter leaves the key out then; for other architectures that means yes."""
    monkeypatch.setattr(GGUFWriter, "add_expert_weights_norm", lambda *_: None)
    path = write_gguf(tmp_path / "no.gguf", LATENT)
    folder = edited_folder(tmp_path, {"norm_topk_prob": False})
    assert np.array_equal(logits(path), logits(folder))
