"""Names: Hugging Face's become GGUF's, everything unknown stays what it is."""

import pytest

from headlong.errors import TensorError
from headlong.weights import tensor_names
from headlong.weights.tensor_names import MAX_BLOCKS, canonical_architecture, canonical_names
from model_files import ARCHITECTURES, MIXTURE, tiny_tensors


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, MIXTURE])
def test_every_weight_gets_its_gguf_name(architecture: str) -> None:
    expected = {tensor.hf_name: tensor.gguf_name for tensor in tiny_tensors(architecture)}
    assert canonical_names(architecture, expected) == expected


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("gemma3_text", "gemma3"),
        ("gemma3", "gemma3"),
        ("llama", "llama"),
        ("qwen3_5", "qwen35"),
        ("qwen3_5_text", "qwen35"),
        ("brand_new", "brand_new"),
    ],
)
def test_model_types_become_architectures(model_type: str, architecture: str) -> None:
    assert canonical_architecture(model_type) == architecture


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("language_model.model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
        ("model.language_model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
        ("language_model.model.embed_tokens.weight", "token_embd.weight"),
        ("language_model.lm_head.weight", "output.weight"),
    ],
)
def test_text_part_of_a_multimodal_model_is_found(name: str, canonical: str) -> None:
    assert canonical_names("gemma3", [name]) == {name: canonical}


def test_decay_bias_of_a_recurrent_layer_is_found() -> None:
    """The tables know it under the name that llama.cpp's converter gives it first."""
    name = "model.language_model.layers.2.linear_attn.dt_bias"
    assert canonical_names("qwen35", [name]) == {name: "blk.2.ssm_dt.bias"}


@pytest.mark.parametrize(
    ("architecture", "name", "canonical"),
    [
        ("qwen35moe", "model.layers.1.mlp.experts.gate_up_proj", "blk.1.ffn_gate_up_exps.weight"),
        ("glm4moe", "model.layers.1.mlp.experts.down_proj", "blk.1.ffn_down_exps.weight"),
        ("glm4moe", "model.layers.1.mlp.experts.12.up_proj.weight", "blk.1.ffn_up_exps.12.weight"),
        (
            "nemotron_h_moe",
            "backbone.layers.1.mixer.experts.0.up_proj.weight",
            "blk.1.ffn_up_exps.0.weight",
        ),
        ("glm4moe", "model.layers.1.mlp.gate.e_score_correction_bias", "blk.1.exp_probs_b.bias"),
        (
            "glm4moe",
            "model.layers.1.mlp.shared_experts.up_proj.weight",
            "blk.1.ffn_up_shexp.weight",
        ),
        (
            "glm4moe",
            "model.layers.256.mlp.experts.up_proj",
            "model.layers.256.mlp.experts.up_proj",
        ),
    ],
)
def test_experts_are_found_stacked_and_one_by_one(
    architecture: str, name: str, canonical: str
) -> None:
    assert canonical_names(architecture, [name]) == {name: canonical}


@pytest.mark.parametrize(
    "name",
    [
        "mtp.fc.weight",
        "vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight",
        "multi_modal_projector.mm_soft_emb_norm.weight",
        "model.layers.999.mlp.up_proj.weight",
        "model.layers.99999999999999999999.mlp.up_proj.weight",
        "model.layers.0.self_attn.qweight",
    ],
)
def test_unknown_name_stays(name: str) -> None:
    assert canonical_names("gemma3", [name]) == {name: name}


def test_unknown_architecture_keeps_all_names() -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    assert canonical_names("brand_new", [name]) == {name: name}


def test_new_architecture_can_share_the_names_of_a_known_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(tensor_names._NAMED_LIKE, "brand_new", "qwen3")
    name = "model.layers.0.self_attn.q_norm.weight"
    assert canonical_names("brand_new", [name]) == {name: "blk.0.attn_q_norm.weight"}


def test_blocks_after_the_last_are_named_too() -> None:
    name = f"model.layers.{MAX_BLOCKS - 1}.self_attn.q_proj.weight"
    assert canonical_names("llama", [name])[name] == f"blk.{MAX_BLOCKS - 1}.attn_q.weight"


def test_two_names_for_one_tensor_are_refused() -> None:
    names = ["model.norm.weight", "language_model.model.norm.weight"]
    with pytest.raises(TensorError, match=r"both mean output_norm\.weight"):
        canonical_names("gemma3", names)
