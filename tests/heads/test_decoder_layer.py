"""A head's layer takes its numbers from its config, and the backbone's where it is silent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headlong.errors import HeadlongError
from headlong.heads.decoder_layer import LayerSpec, expected_layer, read_layer_spec
from headlong.heads.head_weights import HeadWeights
from headlong.heads.nextn import build_nextn
from headlong.models.transformer import Backbone
from random_heads import random_nextn


def read(backbone: Backbone, **config: Any) -> LayerSpec:
    """Read the layer of a head with this config."""
    return read_layer_spec(HeadWeights("nextn", config, {}), backbone)


def test_silent_config_means_the_backbones_numbers(backbone: Backbone) -> None:
    spec, ours = read(backbone), backbone.config
    assert (spec.hidden_size, spec.intermediate_size) == (ours.hidden_size, ours.intermediate_size)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 16)
    assert spec.norm_eps == ours.norm_eps
    assert spec.rope is backbone.layers[-1].attention.rope


def test_given_numbers_win(backbone: Backbone) -> None:
    spec = read(
        backbone,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        rms_norm_eps=1e-3,
        rope_theta=100.0,
        hidden_act="gelu_pytorch_tanh",
    )
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (8, 4, 32)
    assert spec.norm_eps == 1e-3
    assert spec.activation == "gelu_tanh"
    np.testing.assert_allclose(spec.rope.frequencies, 100.0 ** (-np.arange(16) / 16), rtol=1e-6)


def test_head_size_follows_from_other_head_count(backbone: Backbone) -> None:
    assert read(backbone, num_attention_heads=2, num_key_value_heads=1).head_dim == 32


def test_other_head_size_makes_its_own_frequencies(backbone: Backbone) -> None:
    assert len(read(backbone, head_dim=8).rope.frequencies) == 4


def test_rotary_settings_may_be_nested(backbone: Backbone) -> None:
    nested = read(backbone, rope_parameters={"rope_type": "default", "rope_theta": 50.0})
    flat = read(backbone, rope_theta=50.0)
    assert np.array_equal(nested.rope.frequencies, flat.rope.frequencies)
    halved = read(backbone, rope_theta=50.0, rope_scaling={"rope_type": "linear", "factor": 2.0})
    np.testing.assert_allclose(halved.rope.frequencies, flat.rope.frequencies / 2, rtol=1e-6)


def test_gemma_heads_take_the_global_frequencies(
    tiny_backbone: Callable[[str], Backbone],
) -> None:
    backbone = tiny_backbone("gemma3")
    whole = [layer.attention for layer in backbone.layers if layer.attention.window is None]
    assert 0 < len(whole) < len(backbone.layers)
    assert read(backbone).rope is whole[-1].rope


@pytest.mark.parametrize(
    "config",
    [
        {"num_attention_heads": 0},
        {"num_key_value_heads": 0},
        {"num_key_value_heads": 3},
        {"head_dim": 15},
        {"head_dim": 0},
        {"head_dim": 2**40},
        {"num_attention_heads": "four"},
        {"hidden_act": "relu"},
        {"rms_norm_eps": float("nan")},
        {"rope_theta": -1.0},
        {"rope_theta": 1e-300},
        {"rope_theta": 10.0, "rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_theta": 0.0},
        {"rope_theta": 10.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    ],
)
def test_impossible_numbers_are_refused(backbone: Backbone, config: dict[str, Any]) -> None:
    with pytest.raises(HeadlongError):
        read(backbone, **config)


def test_half_an_optional_group_is_missing_tensors(backbone: Backbone) -> None:
    spec, present = read(backbone), {"layers.0.self_attn.q_proj.bias"}
    names = expected_layer(spec, 64, "layers.0.", present.__contains__)
    assert "layers.0.self_attn.v_proj.bias" in names
    assert "layers.0.self_attn.q_norm.weight" not in names
    assert len(names) == 12


def test_zero_biases_change_nothing(backbone: Backbone) -> None:
    biased = random_nextn(backbone.config, layer="qwen2")
    silent = {
        name: replace(tensor, data=np.zeros_like(tensor.data)) if "bias" in name else tensor
        for name, tensor in biased.tensors.items()
    }
    plain = {name: tensor for name, tensor in silent.items() if "bias" not in name}
    state, ids = np.ones((3, 64), dtype=np.float32), [np.array([1, 2, 3])]
    results = []
    for tensors in (silent, plain):
        head = build_nextn(replace(biased, tensors=tensors), backbone)
        results.append(head.step(state, ids, [head.make_cache()]))
    assert results[0].tobytes() == results[1].tobytes()
