"""Canonical names of MTP tensors go back to those that families publish."""

import pytest

from golden_models import GOLDEN, WITH_MTP
from headlong.errors import TensorError
from headlong.heads.nextn_families import FAMILIES
from headlong.weights.mtp_spellings import SPELLINGS, published_names
from headlong.weights.safetensors_file import read_safetensors
from headlong.weights.tensor_names import canonical_architecture, canonical_names

MIMO = [
    *(f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")),
    "self_attn.o_proj.weight",
    *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
    *(f"{x}_layernorm.weight" for x in ("input", "post_attention", "token", "hidden", "final")),
    "input_proj.weight",
]
ARCHITECTURES = {
    "tiny-qwen3_5": "qwen35",
    "tiny-qwen3_5_moe": "qwen35moe",
    "tiny-qwen3_next": "qwen3next",
    "tiny-glm4_moe": "glm4moe",
    "tiny-deepseek_v3": "deepseek2",
    "tiny-glm4_moe_lite": "deepseek2",
    "tiny-mimo_v2_flash": "mimo2",
    "tiny-nemotron_h": "nemotron_h_moe",
}


def check_names(architecture: str, names: list[str], num_layers: int) -> None:
    """Hold the MTP tensors among these names against what becomes of them there and back."""
    read_as = canonical_names(architecture, names, num_layers)
    behind = {
        canonical: name
        for name, canonical in read_as.items()
        if canonical.startswith("blk.") and int(canonical.split(".")[1]) >= num_layers
    }
    assert len(behind) > 10
    assert published_names(architecture, list(behind), num_layers) == behind


@pytest.mark.parametrize("name", WITH_MTP)
def test_published_names_come_back(name: str) -> None:
    num_layers = {"tiny-mimo_v2_flash": 7, "tiny-nemotron_h": 8}.get(name, 4)
    names = list(read_safetensors(GOLDEN / name / "model.safetensors"))
    check_names(ARCHITECTURES[name], names, num_layers)


def test_names_of_mimo_come_back() -> None:
    check_names("mimo", [f"model.mtp_layers.0.{name}" for name in MIMO], 36)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("qwen35", "blk.4.attn_sinks.weight"),  # no part of that family's
        ("qwen35", "blk.5.nextn.eh_proj.weight"),  # it numbers no second module
        ("glm4moe", "something"),
    ],
)
def test_tensor_without_a_published_name_is_refused(architecture: str, name: str) -> None:
    with pytest.raises(TensorError, match=r"without .* \(1 such tensors\)"):
        published_names(architecture, [name], 4)


def test_every_family_that_drafts_can_be_converted() -> None:
    assert SPELLINGS.keys() == FAMILIES.keys()


def test_every_family_is_known_by_its_model_type() -> None:
    for architecture, spelling in SPELLINGS.items():
        has_experts = architecture.endswith("_moe")
        assert canonical_architecture(spelling.model_type, has_experts=has_experts) == architecture
