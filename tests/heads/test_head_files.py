"""Head folders: what is saved is read, other projects' spellings too, and the rest is refused."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from headlong.errors import HeadError
from headlong.heads.head_files import build_head, load_head, read_head_weights, save_head
from headlong.heads.head_weights import FloatType, HeadKind, HeadWeights
from headlong.models.transformer import Backbone
from headlong.weights.tensors import StoredTensor
from passages import first_logits
from random_heads import (
    HEAD_KINDS,
    arrays_of,
    random_eagle3,
    random_head,
    random_medusa,
    random_nextn,
)

CONFIG_KEYS = (
    "architectures",
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "eagle_config",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "norm_before_fc",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "vocab_size",
)


def ids_of(weights: HeadWeights) -> list[int] | None:
    """Return the draft vocabulary as a list."""
    return None if weights.vocabulary is None else weights.vocabulary.tolist()


def rename(path: Path, spell: Callable[[str], str]) -> None:
    """Rewrite a head folder's tensors under other names."""
    tensors = load_file(path / "model.safetensors")
    save_file({spell(name): values for name, values in tensors.items()}, path / "model.safetensors")


def edit_config(path: Path, **changes: object) -> None:
    """Change values of a head folder's config.json."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_saved_head_is_read_back_identically(
    backbone: Backbone, tmp_path: Path, kind: HeadKind
) -> None:
    weights = random_head(kind, backbone.config)
    save_head(tmp_path / "one", weights)
    again = read_head_weights(tmp_path / "one")
    assert again.kind == kind
    assert again.tensors.keys() == weights.tensors.keys()
    for name, tensor in weights.tensors.items():
        assert again.tensors[name].data.tobytes() == tensor.data.tobytes()
    assert ids_of(again) == ids_of(weights)
    save_head(tmp_path / "two", again)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_loaded_head_drafts_as_the_one_in_memory(
    backbone: Backbone, tmp_path: Path, kind: HeadKind
) -> None:
    weights = random_head(kind, backbone.config)
    save_head(tmp_path, weights)
    loaded = load_head(tmp_path, backbone)
    built = build_head(weights, backbone)
    assert loaded.report.unused_tensors == ()
    assert first_logits(loaded, backbone).tobytes() == first_logits(built, backbone).tobytes()


@pytest.mark.parametrize("float_type", ["float32", "float16", "bfloat16"])
def test_all_float_types_are_saved(
    backbone: Backbone, tmp_path: Path, float_type: FloatType
) -> None:
    weights = random_eagle3(backbone.config, draft_vocab_size=40, float_type=float_type)
    save_head(tmp_path, weights)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == float_type
    again = arrays_of(read_head_weights(tmp_path))
    for name, values in arrays_of(weights).items():
        assert np.array_equal(again[name], values)


def test_eagle3_folder_is_what_other_engines_load(backbone: Backbone, tmp_path: Path) -> None:
    """Names, types and config keys that vLLM, SGLang and llama.cpp ask for; an outside reader."""
    weights = random_eagle3(backbone.config, draft_vocab_size=40)
    save_head(tmp_path, weights)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = ["hidden_norm", "input_layernorm", "post_attention_layernorm"]
    layer += [f"self_attn.{x}_proj" for x in "qkvo"]
    layer += [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    names = {f"midlayer.{name}.weight" for name in layer}
    names |= {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert tensors.keys() == names
    assert (tensors["d2t"].dtype.name, tensors["t2d"].dtype.name) == ("int64", "bool")
    assert weights.vocabulary is not None
    assert np.array_equal(np.arange(40) + tensors["d2t"], weights.vocabulary)
    assert np.array_equal(np.flatnonzero(tensors["t2d"]), weights.vocabulary)
    assert tensors["t2d"].shape == (96,)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (64, 128)

    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["vocab_size"], config["draft_vocab_size"]) == (96, 40)
    assert config["num_hidden_layers"] == 1
    assert config["tie_word_embeddings"] is False
    assert config["norm_before_residual"] is False
    assert "eagle_aux_hidden_state_layer_ids" not in config


@pytest.mark.parametrize(
    "spell",
    [
        lambda name: name.replace("midlayer.", "layers.0."),
        lambda name: f"model.{name}" if name.startswith("midlayer.") else name,
        lambda name: f"model.{name.replace('midlayer.', 'layers.0.')}",
    ],
)
def test_eagle3_spellings_of_other_engines_are_read(
    backbone: Backbone, tmp_path: Path, spell: Callable[[str], str]
) -> None:
    weights = random_eagle3(backbone.config, draft_vocab_size=40)
    save_head(tmp_path, weights)
    rename(tmp_path, spell)
    edit_config(tmp_path, architectures=["SomethingElse"])
    loaded = read_head_weights(tmp_path)
    assert loaded.tensors.keys() == weights.tensors.keys()
    assert ids_of(loaded) == ids_of(weights)


def test_speculators_config_is_unwrapped(backbone: Backbone, tmp_path: Path) -> None:
    weights = random_eagle3(backbone.config, draft_vocab_size=40)
    save_head(tmp_path, weights)
    sizes = dict(weights.config)
    config = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 40,
        "norm_before_residual": sizes.pop("norm_before_residual"),
        "rope_theta": None,  # says nothing, and must hide nothing
        "transformer_layer_config": sizes | {"rope_theta": 500.0},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_head(tmp_path, backbone).kind == "eagle3"
    assert read_head_weights(tmp_path).config["rope_theta"] == 500.0


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_medusas_own_spelling_is_read(backbone: Backbone, tmp_path: Path, prefix: str) -> None:
    weights = random_medusa(backbone.config, num_blocks=2)

    def spell(name: str) -> str:
        part, head, *rest = name.split(".")
        if part == "lm_heads":
            return f"{prefix}{head}.2.weight"
        return f"{prefix}{head}.{rest[1]}.linear.{rest[2]}"

    save_head(tmp_path, weights)
    rename(tmp_path, spell)
    (tmp_path / "model.safetensors").rename(tmp_path / "medusa_lm_head.safetensors")
    loaded = load_head(tmp_path, backbone)
    expected = first_logits(build_head(weights, backbone), backbone)
    assert first_logits(loaded, backbone).tobytes() == expected.tobytes()


def test_folder_cut_out_of_a_published_model_is_read(backbone: Backbone, tmp_path: Path) -> None:
    weights = random_nextn(backbone.config)
    save_head(tmp_path, weights)
    rename(tmp_path, lambda name: f"mtp.{name}")
    config = {"model_type": "llama", "num_hidden_layers": backbone.config.num_layers}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_head(tmp_path, backbone)
    expected = first_logits(build_head(weights, backbone), backbone)
    assert first_logits(loaded, backbone).tobytes() == expected.tobytes()


def test_safetensors_file_may_be_named_itself(backbone: Backbone, tmp_path: Path) -> None:
    save_head(tmp_path, random_head("meta", backbone.config))
    assert load_head(tmp_path / "model.safetensors", backbone).kind == "meta"


def test_mask_of_another_backbone_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    weights = random_eagle3(replace(backbone.config, vocab_size=200), draft_vocab_size=40)
    save_head(tmp_path, weights)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadError, match="made for 200 tokens; the backbone has 96"):
        load_head(tmp_path, backbone)
    edit_config(tmp_path, vocab_size=96)
    with pytest.raises(HeadError, match=r"t2d covers 200 tokens, config\.json says 96"):
        load_head(tmp_path, backbone)


def test_maps_that_disagree_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    save_head(tmp_path, random_eagle3(backbone.config, draft_vocab_size=40))
    tensors = load_file(tmp_path / "model.safetensors")
    without_d2t = {name: values for name, values in tensors.items() if name != "d2t"}
    tensors["t2d"] = ~tensors["t2d"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(HeadError, match="name different tokens"):
        read_head_weights(tmp_path)
    save_file(without_d2t, tmp_path / "model.safetensors")
    with pytest.raises(HeadError, match="t2d but no d2t"):
        read_head_weights(tmp_path)


def test_map_of_floats_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    save_head(tmp_path, random_eagle3(backbone.config, draft_vocab_size=40))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["d2t"] = tensors["d2t"].astype(np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(HeadError, match="integers are needed"):
        read_head_weights(tmp_path)


def test_tensor_under_two_spellings_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    save_head(tmp_path, random_eagle3(backbone.config))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(HeadError, match=r"gives norm\.weight more than once"):
        read_head_weights(tmp_path)


def test_quantised_tensor_is_not_saved(tmp_path: Path) -> None:
    packed = quantize(np.ones((2, 32), dtype=np.float32), GGMLQuantizationType.Q8_0)
    tensor = StoredTensor("x", (2, 32), GGMLQuantizationType.Q8_0, packed)
    with pytest.raises(HeadError, match="Tensor x is stored as Q8_0"):
        save_head(tmp_path, HeadWeights("meta", {}, {"x": tensor}))


def test_unwritable_place_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HeadError, match="cannot be written"):
        save_head(tmp_path / "file", random_head("meta", backbone.config))


def test_folders_without_a_head_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    with pytest.raises(HeadError, match="There is no head at"):
        load_head(tmp_path / "nowhere", backbone)
    with pytest.raises(HeadError, match=r"holds no model\.safetensors"):
        load_head(tmp_path, backbone)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"x")
    with pytest.raises(HeadError, match="pickle"):
        load_head(tmp_path, backbone)
    for name in ("a", "b"):
        save_file({"x": np.zeros(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(HeadError, match=r"several weight files: a\.safetensors, b"):
        load_head(tmp_path, backbone)
    with pytest.raises(HeadError, match=r"config\.json"):
        load_head(tmp_path / "a.safetensors", backbone)


@given(position=st.integers(0, 2**16), junk=st.binary(min_size=1, max_size=16), cut=st.booleans())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_folders_are_refused_or_read(
    backbone: Backbone, tmp_path: Path, position: int, junk: bytes, cut: bool
) -> None:
    save_head(tmp_path, random_eagle3(backbone.config, draft_vocab_size=40))
    file = tmp_path / ("model.safetensors" if position % 2 else "config.json")
    data = bytearray(file.read_bytes())
    position %= min(len(data), 2500)  # the header and a little more
    data[position : position + len(junk)] = junk
    file.write_bytes(data[:position] if cut else data)
    with contextlib.suppress(HeadError):
        load_head(tmp_path, backbone)


@given(
    key=st.sampled_from(CONFIG_KEYS),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=4)
    | st.dictionaries(st.sampled_from(["type", "factor", "rope_theta"]), st.floats() | st.text()),
)
@settings(max_examples=200, deadline=None)
def test_odd_config_values_are_refused_or_read(backbone: Backbone, key: str, value: object) -> None:
    weights = random_eagle3(backbone.config, draft_vocab_size=40)
    with contextlib.suppress(HeadError):
        build_head(replace(weights, config={**weights.config, key: value}), backbone)
