"""Sizes of recurrent layers from GGUF metadata."""

from pathlib import Path
from typing import Any

import pytest

from headlong.errors import CheckpointError
from headlong.models.delta_config import gguf_delta_net
from headlong.models.settings import Settings

KEYS: dict[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 8,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 48,
    "full_attention_interval": 4,
}


def settings(**changes: Any) -> Settings:
    return Settings(KEYS | changes, Path("model.gguf"))


def test_sizes_are_read() -> None:
    sizes = gguf_delta_net(settings(), 8, "qwen35")
    assert sizes is not None
    assert sizes.layers == (0, 1, 2, 4, 5, 6)
    assert (sizes.num_key_heads, sizes.num_value_heads) == (2, 4)
    assert (sizes.key_dim, sizes.value_dim, sizes.conv_width) == (8, 12, 4)


def test_layers_that_are_listed_count_but_not_those_of_the_head() -> None:
    listed = settings(**{"attention.recurrent_layers": [True, False, True, False]})
    sizes = gguf_delta_net(listed, 2, "qwen3next")
    assert sizes is not None
    assert sizes.layers == (0,)


@pytest.mark.parametrize(
    ("architecture", "num_values", "is_tiled"),
    [("qwen35", 4, True), ("qwen35moe", 4, True), ("qwen3next", 4, False), ("qwen35", 2, False)],
)
def test_value_heads_are_tiled_where_the_converter_tiles_them(
    architecture: str, num_values: int, is_tiled: bool
) -> None:
    sizes = gguf_delta_net(settings(**{"ssm.time_step_rank": num_values}), 4, architecture)
    assert sizes is not None
    assert sizes.is_tiled == is_tiled


def test_models_that_only_attend_have_none() -> None:
    assert gguf_delta_net(Settings({}, Path("model.gguf")), 4, "llama") is None


def test_heads_that_do_not_share_evenly_are_refused() -> None:
    with pytest.raises(CheckpointError, match="evenly"):
        gguf_delta_net(settings(**{"ssm.time_step_rank": 3}), 4, "qwen35")
