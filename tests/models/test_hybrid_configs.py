"""Configurations of MiMo-V2 and Nemotron: alike from both formats, refused by name when damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden_gguf import write_golden_gguf
from golden_models import GOLDEN
from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.model_config import ModelConfig, read_config
from headlong.models.registry import load_backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import open_checkpoint
from model_files import FROM_GOLDEN, MAMBA, SINKS

DAMAGED: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1, 3, 7, 10**9, 2**70, 1e-300, 1e300, "", "M*", "text", [], [1], [[]], {}]
)


def folder_with(path: Path, name: str, changes: dict[str, Any]) -> Path:
    """Put a golden model into a folder, with some settings changed."""
    config = json.loads((GOLDEN / name / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    weights = path / "model.safetensors"
    if not weights.exists():
        weights.symlink_to(GOLDEN / name / "model.safetensors")
    return path


def read(path: Path, name: str, **changes: Any) -> ModelConfig:
    """Read the changed configuration of a golden model."""
    return read_config(open_checkpoint(folder_with(path, name, changes)))


def refusal_of(folder: Path) -> CheckpointError | None:
    """Load a model; return why it was refused. Any other error fails the test."""
    try:
        load_backbone(open_checkpoint(folder), NumpyOps())
    except CheckpointError as error:
        return error
    return None


@pytest.mark.parametrize("name", FROM_GOLDEN)
def test_both_formats_give_one_config(name: str, tmp_path: Path) -> None:
    from_gguf = read_config(open_checkpoint(write_golden_gguf(tmp_path / "m.gguf", name)))
    from_folder = read_config(open_checkpoint(GOLDEN / name))
    assert from_gguf.mamba == from_folder.mamba
    assert from_gguf.norm_eps == pytest.approx(from_folder.norm_eps)
    if from_folder.mimo is not None and from_gguf.mimo is not None:
        scale = from_folder.mimo.value_scale
        assert replace(from_gguf.mimo, value_scale=scale) == from_folder.mimo
        assert from_gguf.mimo.value_scale == pytest.approx(scale)
    for field in ("num_layers", "num_kv_heads", "sliding_window", "local_layers", "rope_theta"):
        if field != "rope_theta" or name == SINKS:
            assert getattr(from_gguf, field) == getattr(from_folder, field), field


def test_published_windows_do_not_count_the_row_itself(tmp_path: Path) -> None:
    config = read(tmp_path, SINKS, sliding_window_size=128)
    assert config.sliding_window == 129


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mamba_num_heads": 3}, "3 heads of 8 in 2 groups"),
        ({"ssm_state_size": 5000}, "states of 5000"),
        ({"conv_kernel": 1}, "over 1 rows"),
        ({"time_step_limit": [2.0, 1.0]}, "from 2 to 1"),
        ({"time_step_limit": ["a", "b"]}, "from nan to nan"),
        ({"time_step_limit": [1.0]}, "1 numbers, not 2"),
    ],
)
def test_mamba_sizes_that_cannot_be_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, MAMBA, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hybrid_override_pattern": "M-ME*M*X"}, "kind 'X'"),
        ({"layers_block_type": ["conv"] * 8}, "kind '?'"),
        ({"mamba_proj_bias": True}, "biases"),
        ({"hybrid_override_pattern": "M-M"}, "kinds of its 8 layers"),
    ],
)
def test_patterns_that_are_not_computed_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    folder = folder_with(tmp_path, MAMBA, changes)
    with pytest.raises(ArchitectureError) as refused:
        load_backbone(open_checkpoint(folder), NumpyOps())
    assert words in refused.value.problem


def test_value_heads_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="values of size 15"):
        read(tmp_path, SINKS, v_head_dim=15)


@pytest.mark.parametrize("name", FROM_GOLDEN)
@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damaged_settings_load_or_are_refused_with_a_remedy(
    name: str, tmp_path: Path, data: st.DataObject
) -> None:
    known = sorted(json.loads((GOLDEN / name / "config.json").read_text()).keys() - {"model_type"})
    keys = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    changes = {key: data.draw(DAMAGED) for key in keys}
    refusal = refusal_of(folder_with(tmp_path, name, changes))
    assert refusal is None or refusal.remedy
