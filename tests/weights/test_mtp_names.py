"""MTP tensors get one spelling, whatever a family calls them; all other names stay."""

import pytest

from headlong.weights.mtp_names import canonical_mtp_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mtp.fc.weight", "blk.7.nextn.eh_proj.weight"),
        ("mtp.pre_fc_norm_embedding.weight", "blk.7.nextn.enorm.weight"),
        ("mtp.norm.weight", "blk.7.nextn.shared_head_norm.weight"),
        ("mtp.layers.0.self_attn.q_proj.weight", "model.layers.7.self_attn.q_proj.weight"),
        ("mtp.layers.1.mlp.up_proj.weight", "model.layers.8.mlp.up_proj.weight"),
        ("model.layers.7.enorm.weight", "blk.7.nextn.enorm.weight"),
        ("model.layers.8.shared_head.head.weight", "blk.8.nextn.shared_head_head.weight"),
        ("model.layers.7.embed_tokens.weight", "blk.7.nextn.embed_tokens.weight"),
        (
            "model.layers.7.mlp.experts.3.up_proj.weight",
            "model.layers.7.mlp.experts.3.up_proj.weight",
        ),
        ("model.layers.7.transformer.mlp.up_proj.weight", "model.layers.7.mlp.up_proj.weight"),
        ("model.mtp_layers.0.input_proj.weight", "blk.7.nextn.eh_proj.weight"),
        ("model.mtp_layers.0.self_attn.q_proj.bias", "model.layers.7.self_attn.q_proj.bias"),
        ("model.mtp.layers.2.hnorm.weight", "blk.9.nextn.hnorm.weight"),
        (
            "model.mtp.layers.0.pre_mlp_layernorm.weight",
            "model.layers.7.post_attention_layernorm.weight",
        ),
    ],
)
def test_every_spelling_is_brought_to_one(name: str, expected: str) -> None:
    assert canonical_mtp_name(name, num_layers=7) == expected


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.6.self_attn.q_proj.weight",
        "model.embed_tokens.weight",
        "lm_head.weight",
        f"model.layers.{10**20}.enorm.weight",
        "mtp",
        "mtp..weight",
        "",
        "extra_heads.0.mlp.up_proj.weight",
    ],
)
def test_other_names_stay(name: str) -> None:
    assert canonical_mtp_name(name, num_layers=7) == name
