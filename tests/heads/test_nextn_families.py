"""The family table: every published spelling is recognised, what cannot be computed is named."""

import numpy as np
import pytest

from headlong.arrays import FloatArray
from headlong.errors import HeadError
from headlong.heads.head_weights import store_array, store_arrays
from headlong.heads.nextn_families import (
    FAMILIES,
    NextnModule,
    NextnSwitches,
    find_module,
    read_switches,
    refuse_uncomputed,
    write_switches,
)
from headlong.models.transformer import Backbone
from headlong.weights.tensors import StoredTensor
from native_heads import DEEPSEEK, GGUF, MIMO, QWEN, head_arrays, spell
from random_heads import nextn_arrays


def find(arrays: dict[str, FloatArray], model_type: str, num_layers: int = 7) -> NextnModule:
    """Find a module that must be there."""
    module = find_module(store_arrays(arrays), model_type, num_layers)
    assert module is not None
    return module


@pytest.mark.parametrize(
    ("spelling", "model_type", "family"),
    [
        (QWEN, "qwen3_5", "Qwen3-Next / Qwen3.5"),
        (QWEN, "exaone_moe", "EXAONE 4.5 / MoE"),
        (DEEPSEEK, "deepseek_v3", "DeepSeek-V3"),
        (DEEPSEEK, "glm4_moe", "GLM-4.5 / GLM-5"),
        (DEEPSEEK, "step3p5", "Step-3.5"),
        (MIMO, "mimo", "MiMo-7B"),
        (GGUF, "qwen35", "Qwen3-Next / Qwen3.5 (GGUF)"),
    ],
)
def test_every_spelling_is_brought_to_ours(
    backbone: Backbone, spelling: dict[str, str], model_type: str, family: str
) -> None:
    arrays = head_arrays(backbone.config, "qwen3")
    module = find(spell(arrays, spelling, block=7), model_type)
    assert module.family.name == family
    assert module.is_known
    assert module.tensors.keys() == arrays.keys()
    assert module.other_modules == ()
    for name, values in arrays.items():
        assert np.array_equal(module.tensors[name].to_float32(), values)


def test_multimodal_prefix_is_seen_through(backbone: Backbone) -> None:
    spelled = spell(head_arrays(backbone.config), DEEPSEEK, block=7)
    prefixed = {f"language_model.{name}": values for name, values in spelled.items()}
    assert find(prefixed, "glm4_moe").tensors.keys() == head_arrays(backbone.config).keys()


def test_backbone_layers_are_no_module(backbone: Backbone) -> None:
    spelled = spell(head_arrays(backbone.config), DEEPSEEK, block=6)
    assert find_module(store_arrays(spelled), "deepseek_v3", num_layers=7) is None
    assert find_module({}, "llama", num_layers=7) is None


def test_further_modules_are_listed(backbone: Backbone) -> None:
    arrays = head_arrays(backbone.config)
    two = spell(arrays, DEEPSEEK, block=7) | spell(arrays, DEEPSEEK, block=8)
    module = find(two, "deepseek_v3")
    assert len(module.other_modules) == len(arrays)
    assert all(name.startswith("model.layers.8.") for name in module.other_modules)


def test_unlisted_model_type_takes_the_spellings_first_family(backbone: Backbone) -> None:
    module = find(spell(head_arrays(backbone.config), QWEN, block=7), "llama")
    assert not module.is_known
    assert module.family.switches == NextnSwitches()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("self_attn.kv_a_proj_with_mqa.weight", "multi-head latent attention"),
        ("mlp.experts.0.up_proj.weight", "a mixture of experts"),
        ("mlp.gate.weight", "a mixture of experts"),
        ("self_attn.attention_sink_bias", "attention sinks"),
        ("mixer.in_proj.weight", "a mixer that is no attention"),
        ("self_attn.indexer.wk.weight", "a sparse-attention indexer"),
    ],
)
def test_parts_the_op_set_lacks_are_named(backbone: Backbone, name: str, part: str) -> None:
    arrays = spell(head_arrays(backbone.config), DEEPSEEK, block=7)
    arrays[f"model.layers.7.{name}"] = np.zeros((2, 2), dtype=np.float32)
    module = find(arrays, "glm4_moe")
    with pytest.raises(HeadError, match=f"GLM-4.5 / GLM-5 family.*{part}") as refusal:
        refuse_uncomputed(module, "model", query_rows=64)
    assert "ngram" in refusal.value.remedy


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("blk.7.attn_kv_a_mqa.weight", "multi-head latent attention"),
        ("blk.7.ffn_gate_exps.weight", "a mixture of experts"),
        ("blk.7.ffn_gate_inp.weight", "a mixture of experts"),
        ("blk.7.attn_sinks.weight", "attention sinks"),
    ],
)
def test_parts_are_named_in_gguf_spelling_too(backbone: Backbone, name: str, part: str) -> None:
    arrays = spell(head_arrays(backbone.config), GGUF, block=7)
    arrays[name] = np.zeros((2, 2), dtype=np.float32)
    with pytest.raises(HeadError, match=part):
        refuse_uncomputed(find(arrays, "glm4moe"), "model", query_rows=64)


def test_output_gate_is_seen_by_the_width_of_the_query(backbone: Backbone) -> None:
    arrays = head_arrays(backbone.config)
    arrays["layers.0.self_attn.q_proj.weight"] = np.zeros((128, 64), dtype=np.float32)
    module = find(spell(arrays, QWEN, block=7), "qwen3_5")
    with pytest.raises(HeadError, match=r"Qwen3.5 family.*output gate"):
        refuse_uncomputed(module, "model", query_rows=64)


@pytest.mark.parametrize(
    ("name", "model_type", "reason"),
    [
        ("mtp.0.e_proj.weight", "deepseek_v4", "residual several times as wide"),
        ("model.mtp.layers.0.input_proj.weight", "inkling", "chained"),
        ("model.mtp_block.0.mlp.up_proj.weight", "ernie4_5_moe", "no final norm"),
        ("pre_projection.weight", "gemma4_assistant", "backbone's own keys"),
    ],
)
def test_families_of_other_wiring_are_refused_by_name(
    name: str, model_type: str, reason: str
) -> None:
    module = find({name: np.zeros((2, 2), dtype=np.float32)}, model_type)
    with pytest.raises(HeadError, match=reason):
        refuse_uncomputed(module, "model", query_rows=64)


def test_dense_module_is_not_refused(backbone: Backbone) -> None:
    rng = np.random.default_rng(0)
    for layer in ("llama", "qwen2", "qwen3"):
        arrays = nextn_arrays(backbone.config, rng, layer)
        refuse_uncomputed(find(spell(arrays, QWEN, 7), "qwen3_next"), "model", query_rows=64)


def test_table_holds_what_the_research_found() -> None:
    by_type = {kind: family for family in FAMILIES for kind in family.model_types}
    assert by_type["mimo"].switches.concat == "hidden_first"
    assert by_type["step3p5"].switches.trunk == "raw"
    assert by_type["kimi_k3"].switches.carried == "raw"
    assert by_type["qwen3_next"].switches.norm == "one_plus"
    assert by_type["qwen35"].switches.norm == "plain"
    assert by_type["deepseek_v3"].switches == NextnSwitches(first_embedding="zeroed")
    num_types = sum(len(family.model_types) for family in FAMILIES)
    assert num_types == len(by_type), "a model type belongs to one family"


def test_switches_survive_a_config() -> None:
    switches = NextnSwitches("hidden_first", "raw", "raw", "one_plus", "zeroed")
    assert read_switches({"nextn": write_switches(switches)}, "head") == switches


def test_odd_names_are_no_module() -> None:
    odd = (f"model.layers.{10**20}.enorm.weight", "mtp", "blk..x", "", "blk." + "9" * 5000 + ".x")
    tensors: dict[str, StoredTensor] = {n: store_array(n, np.zeros(2)) for n in odd}
    assert find_module(tensors, "x", num_layers=2) is None
