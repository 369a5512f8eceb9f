"""One record whatever file it came from; damaged metadata is refused with the value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.rope_scaling import RopeScaling
from headlong.weights.checkpoint import open_checkpoint
from model_files import ARCHITECTURES, MIXTURE, write_gguf, write_hf_folder

Edit = Callable[[dict[str, Any]], None]


def read_edited(folder: Path, architecture: str, **changes: Any) -> ModelConfig:
    """Write a tiny folder, change its config.json, read it back."""
    write_hf_folder(folder, architecture)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
    return read_config(open_checkpoint(folder))


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, MIXTURE])
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
