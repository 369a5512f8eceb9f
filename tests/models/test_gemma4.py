"""Gemma 4 out of damaged files: a model, or a refusal that says why; and which layers share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from assistant_files import write_assistant_folder, write_assistant_gguf
from headlong.errors import CheckpointError, HeadlongError
from headlong.heads.assistant import read_assistant
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import store_array
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Attention, SharedAttention
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from model_files import GEMMA4, write_gguf, write_hf_folder

VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "sliding_attention", "full_attention", "proportional", "linear"])
    | st.lists(st.booleans() | st.integers(-1, 70) | st.text(max_size=3), max_size=6)
    | st.dictionaries(st.sampled_from(["full_attention", "2", "rope_type", "head_dim"]), st.none())
)

fuzz = settings(max_examples=150, derandomize=True, deadline=None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A tiny Gemma 4 and its assistant, as a folder and as GGUF each."""
    path = tmp_path_factory.mktemp("gemma4")
    return [
        write_hf_folder(path / "m", GEMMA4),
        write_gguf(path / "m.gguf", GEMMA4),
        write_assistant_folder(path / "a"),
        write_assistant_gguf(path / "a.gguf"),
    ]


def load(checkpoint: Checkpoint) -> Backbone:
    """Load a backbone on the oracle backend."""
    return load_backbone(checkpoint, NumpyOps()).backbone


def changed(file: Path, place: int, value: object) -> Checkpoint:
    """Open a file with a value in place of one of the settings that say how the model is built."""
    checkpoint = open_checkpoint(file)
    metadata: dict[str, Any] = dict(checkpoint.metadata)
    where = metadata
    if "text_config" in metadata:
        where = metadata["text_config"] = dict(metadata["text_config"])
    prefix = "" if checkpoint.format == "safetensors" else f"{checkpoint.architecture}."
    names = sorted(name for name in where if name.startswith(prefix))
    where[names[place % len(names)]] = value
    return replace(checkpoint, metadata=metadata)


def refusal(action: Callable[[], Any]) -> HeadlongError | None:
    """Return the error an action ends in; None when it succeeds. Other exceptions fail the test."""
    try:
        action()
    except HeadlongError as error:
        return error
    return None


@fuzz
@given(which=st.integers(0, 1), place=st.integers(0, 40), value=VALUES)
def test_odd_settings_give_a_model_or_a_refusal(
    files: list[Path], which: int, place: int, value: object
) -> None:
    checkpoint = changed(files[which], place, value)
    error = refusal(lambda: load(checkpoint))
    if error is not None:
        assert error.problem
        assert error.remedy
        return
    backbone = load(checkpoint)
    logits = backbone.logits(backbone.forward([np.arange(3)], [backbone.make_cache()]).normed)
    assert np.isfinite(logits).all()


@fuzz
@given(which=st.integers(2, 3), place=st.integers(0, 40), value=VALUES)
def test_odd_settings_of_an_assistant_give_a_head_or_a_refusal(
    files: list[Path], which: int, place: int, value: object
) -> None:
    backbone, checkpoint = load(open_checkpoint(files[0])), changed(files[which], place, value)
    error = refusal(lambda: build_head(read_assistant(checkpoint), backbone))
    assert error is None or (error.problem and error.remedy)


def test_per_layer_embeddings_are_read_row_by_row_from_packed_files(tmp_path: Path) -> None:
    """Rows of a Q8_0 table are those that unpacking all of it would give."""
    kind = GGMLQuantizationType.Q8_0
    packed = open_checkpoint(write_gguf(tmp_path / "m.gguf", GEMMA4, matrix_type=kind))
    name = "per_layer_token_embd.weight"
    values = packed.tensors[name].to_float32()
    whole = store_array(name, values)
    unpacked = replace(packed, tensors={**packed.tensors, name: whole})
    ids = np.array([5, 90, 5, 0])
    found, expected = (
        backbone.logits(backbone.forward([ids], [backbone.make_cache()]).normed)
        for backbone in (load(packed), load(unpacked))
    )
    assert found.tobytes() == expected.tobytes()


def test_the_last_layers_read_the_last_of_their_kind(files: list[Path]) -> None:
    mixers = [layer.mixer for layer in load(open_checkpoint(files[0])).layers]
    assert [type(mixer) for mixer in mixers] == [Attention] * 3 + [SharedAttention] * 2
    sources = [mixer.source for mixer in mixers if isinstance(mixer, SharedAttention)]
    assert sources == [1, 1]  # layer 2 is the full one, and both sharing layers slide


def test_layers_that_share_have_one_state(tiny_backbone: Callable[[str], Backbone]) -> None:
    for name in (GEMMA4, f"{GEMMA4}@native"):
        layers = tiny_backbone(name).make_cache().layers  # 7 of them
        assert layers[5] is layers[2]
        assert layers[6] is layers[4]
        assert len({id(layer) for layer in layers}) == 5


def test_without_a_layer_to_read_from_it_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_hf_folder(tmp_path, GEMMA4))
    metadata = dict(checkpoint.metadata) | {"num_kv_shared_layers": 5}
    with pytest.raises(CheckpointError, match="none of the first 0 layers"):
        load(replace(checkpoint, metadata=metadata))


def test_missing_values_are_missed_where_the_config_promises_them(tmp_path: Path) -> None:
    """Only where it says so are keys the values, too; in GGUF, absence says so."""
    checkpoint = open_checkpoint(write_hf_folder(tmp_path, GEMMA4))
    metadata = dict(checkpoint.metadata) | {"attention_k_eq_v": False}
    metadata["num_key_value_heads"], metadata["num_global_key_value_heads"] = 2, 1
    with pytest.raises(HeadlongError, match=r"blk\.2\.attn_v\.weight"):
        load(replace(checkpoint, metadata=metadata))
