"""Sizes of mixtures of experts: the same record from both formats, and damaged ones refused."""

from pathlib import Path
from typing import Any

import pytest

from headlong.errors import ArchitectureError, CheckpointError
from headlong.models.experts_config import ExpertsConfig, gguf_experts, hugging_face_experts
from headlong.models.settings import Settings

EXPECTED = ExpertsConfig(
    num_experts=8,
    num_chosen=2,
    expert_size=96,
    shared_size=192,
    latent_size=32,
    scoring="sigmoid",
    is_renormalised=False,
    scale=2.5,
    num_groups=4,
    num_chosen_groups=2,
)
GGUF = {
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 96,
    "expert_shared_count": 2,
    "moe_latent_size": 32,
    "expert_gating_func": 2,
    "expert_weights_norm": False,
    "expert_weights_scale": 2.5,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
}
HUGGING_FACE = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_shared_experts": 2,
    "moe_latent_size": 32,
    "scoring_func": "sigmoid",
    "norm_topk_prob": False,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
}
QWEN = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "shared_expert_intermediate_size": 64,
}


def settings(values: dict[str, Any]) -> Settings:
    return Settings(values, Path("model"))


def test_both_formats_give_one_record() -> None:
    assert gguf_experts(settings(GGUF)) == EXPECTED
    assert hugging_face_experts(settings(HUGGING_FACE)) == EXPECTED


def test_what_a_config_does_not_say_is_usual() -> None:
    expected = ExpertsConfig(num_experts=8, num_chosen=2, expert_size=96, shared_size=64)
    assert hugging_face_experts(settings(QWEN)) == expected


def test_a_dense_model_has_none() -> None:
    assert gguf_experts(settings({})) is None
    assert hugging_face_experts(settings({"num_experts": None})) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"num_experts_per_tok": 9},
        {"num_experts_per_tok": 0},
        {"n_group": 3},
        {"n_group": 8},
        {"topk_group": 5},
        {"num_experts_per_tok": 5},
        {"moe_intermediate_size": 0},
        {"n_routed_experts": 2**20},
    ],
)
def test_sizes_that_do_not_fit_are_refused(damage: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match="do not fit together"):
        hugging_face_experts(settings(HUGGING_FACE | damage))


def test_unknown_scoring_is_refused() -> None:
    with pytest.raises(ArchitectureError, match="'sqrtsoftplus'"):
        hugging_face_experts(settings(HUGGING_FACE | {"scoring_func": "sqrtsoftplus"}))
    with pytest.raises(ArchitectureError, match="'7'"):
        gguf_experts(settings(GGUF | {"expert_gating_func": 7}))
