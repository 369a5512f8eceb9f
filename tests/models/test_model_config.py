"""One record whatever file it came from; damaged metadata is refused with the value."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.rope_scaling import RopeScaling
from headlong.weights.checkpoint import open_checkpoint
from model_files import BOTH_FORMATS, GEMMA4, write_gguf, write_hf_folder

Edit = Callable[[dict[str, Any]], None]


def read_edited(folder: Path, architecture: str, **changes: Any) -> ModelConfig:
    """Write a tiny folder, change its config.json, read it back."""
    write_hf_folder(folder, architecture)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
    return read_config(open_checkpoint(folder))


@pytest.mark.parametrize("architecture", BOTH_FORMATS)
def test_both_formats_give_one_config(architecture: str, tmp_path: Path) -> None:
    from_gguf = read_config(open_checkpoint(write_gguf(tmp_path / "m.gguf", architecture)))
    from_folder = read_config(open_checkpoint(write_hf_folder(tmp_path / "m", architecture)))
    for name in ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"):
        assert getattr(from_gguf, name) == getattr(from_folder, name), name
    assert from_gguf.head_dim == from_folder.head_dim
    assert from_gguf.context_length == from_folder.context_length
    assert from_gguf.rope_theta == from_folder.rope_theta
    assert from_gguf.norm_eps == pytest.approx(from_folder.norm_eps, rel=1e-6)  # float32 in GGUF


def test_missing_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_hidden_layers is 'absent'"):
        read_edited(tmp_path, "llama", num_hidden_layers="absent")


@pytest.mark.parametrize("value", [-1, "three", 2.5, True, [3]])
def test_setting_of_wrong_kind_is_shown(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="num_hidden_layers is"):
        read_edited(tmp_path, "llama", num_hidden_layers=value)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="4 heads do not share 3"):
        read_edited(tmp_path, "llama", num_key_value_heads=3)


def test_zero_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_heads is 0, not between 1"):
        read_edited(tmp_path, "llama", num_attention_heads=0, head_dim=16)


def test_unknown_rope_scaling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="'dynamic'"):
        read_edited(tmp_path, "llama", rope_scaling={"rope_type": "dynamic", "factor": 4.0})


@pytest.mark.parametrize(
    "wrong", [{"factor": 0.0}, {"high_freq_factor": 1.0}, {"original_max_position_embeddings": 0}]
)
def test_rope_scaling_that_gives_no_frequencies_is_refused(
    tmp_path: Path, wrong: dict[str, float]
) -> None:
    """It once became infinite frequencies, and those an answer of noise."""
    scaling: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    with pytest.raises(CheckpointError, match="stretched"):
        read_edited(tmp_path, "llama", rope_scaling=scaling | wrong)


def test_llama3_rope_scaling_is_read(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = read_edited(tmp_path, "llama", rope_scaling=scaling)
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


def test_sliding_layers_of_qwen2_are_those_above_the_bound(tmp_path: Path) -> None:
    config = read_edited(
        tmp_path,
        "qwen2",
        use_sliding_window=True,
        sliding_window=64,
        max_window_layers=1,
        layer_types="absent",
    )
    assert config.local_layers == {1}


def test_head_blocks_do_not_count_as_layers(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", "llama", extra_metadata={"llama.nextn_predict_layers": 1}
    )
    assert read_config(open_checkpoint(path)).num_layers == 2


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("global_head_dim", 33, "heads of 33 numbers"),
        ("global_head_dim", 2**20, "global_head_dim is 1048576"),
        ("num_global_key_value_heads", 0, "num_global_kv_heads is 0"),
        ("final_logit_softcapping", -1.0, "capped at -1"),
        ("attention_bias", True, "biases in its attention"),
        ("use_bidirectional_attention", "all", "later tokens"),
        ("hidden_activation", "silu", "uses 'silu'"),
    ],
)
def test_gemma4_of_another_kind_is_refused(
    tmp_path: Path, name: str, value: object, complaint: str
) -> None:
    with pytest.raises((CheckpointError, ArchitectureError), match=complaint):
        read_edited(tmp_path, GEMMA4, **{name: value})


def test_gemma4_says_the_same_in_both_formats(tmp_path: Path) -> None:
    folder = read_config(open_checkpoint(write_hf_folder(tmp_path / "m", GEMMA4)))
    gguf = read_config(open_checkpoint(write_gguf(tmp_path / "m.gguf", GEMMA4)))
    assert gguf.local_layers == folder.local_layers == frozenset({0, 1, 3, 4})
    assert gguf.local_rope_theta == folder.local_rope_theta == 1e4
    assert folder.gemma4 is not None
    assert gguf.gemma4 == replace(folder.gemma4, rotary_share=1.0)  # a tensor says that in GGUF


def test_gemma4_from_transformers_5_has_sizes_for_single_layers(tmp_path: Path) -> None:
    wide = {"head_dim": 48, "num_key_value_heads": 4}
    config = read_edited(
        tmp_path,
        GEMMA4,
        global_head_dim="absent",
        num_global_key_value_heads="absent",
        per_layer_config={"2": wide, "5": wide},
    )
    assert config.gemma4 is not None
    assert (config.gemma4.global_head_dim, config.gemma4.num_global_kv_heads) == (48, 4)
