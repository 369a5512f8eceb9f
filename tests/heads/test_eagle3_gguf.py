"""EAGLE-3 heads in llama.cpp's files: what they say is read, what does not fit is named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from golden_models import GOLDEN
from headlong.errors import HeadlongError
from headlong.heads.eagle3_gguf import read_eagle3_gguf
from headlong.heads.head import Head
from headlong.heads.head_files import build_head, read_head_weights
from headlong.heads.head_weights import store_array
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.weights.checkpoint import Checkpoint, open_checkpoint

FILE = GOLDEN / "speculators-head" / "converted.gguf"


@pytest.fixture(name="model", scope="module")
def load_model() -> Backbone:
    """The model that the head is for."""
    return load_backbone(open_checkpoint(GOLDEN / "tiny-llama3-rope"), NumpyOps()).backbone


def changed(metadata: dict[str, Any], tensors: dict[str, Any] | None = None) -> Checkpoint:
    """Return the file with other metadata and tensors; None takes one out."""
    file = open_checkpoint(FILE)
    keys = {**file.metadata, **{f"eagle3.{name}": value for name, value in metadata.items()}}
    parts = {name: one for name, one in {**file.tensors, **(tensors or {})}.items() if one}
    return replace(file, metadata=keys, tensors=parts)


def build(file: Checkpoint, model: Backbone) -> Head:
    """Build the head that a file holds."""
    return build_head(read_eagle3_gguf(file), model)


def test_file_and_folder_give_the_same_head() -> None:
    file, folder = read_head_weights(FILE), read_head_weights(FILE.parent)
    assert file.tensors.keys() == folder.tensors.keys() | {"rope_freqs.weight"}
    for name, tensor in folder.tensors.items():
        assert file.tensors[name].data.tobytes() == tensor.data.tobytes(), name
    assert file.vocabulary is not None
    assert folder.vocabulary is not None
    assert file.vocabulary.tolist() == folder.vocabulary.tolist()
    same = ("hidden_size", "head_dim", "norm_before_residual", "norm_before_fc", "vocab_size")
    assert [file.config[key] for key in same] == [folder.config[key] for key in same]


def test_stretched_positions_are_read(model: Backbone) -> None:
    plain = read_eagle3_gguf(changed({}, {"rope_freqs.weight": None}))
    stretched = read_eagle3_gguf(
        changed({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    )
    assert "rope_scaling" not in plain.config
    assert stretched.config["rope_scaling"]["factor"] == 4.0
    build_head(stretched, model)


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"embedding_length": 64}, {}, r"fc\.weight \[32, 96\]"),
        ({"vocab_size": 65}, {}, "made for 65 tokens; the backbone has 64"),
        ({"target_layers": [1, 2, 4]}, {}, r"\[1, 2, 4\]; the backbone has 4"),
        ({"block_count": 2}, {}, "has 2 layers"),
        ({"attention.head_count": None}, {}, "attention.head_count is 'absent'"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, {}, "'longrope'"),
        ({}, {"output.weight": None}, r"lacks 1 of .* lm_head\.weight"),
        ({}, {"d2t": store_array("d2t", np.zeros(40))}, "integers are needed"),
        (
            {},
            {"blk.0.attn_sinks.weight": store_array("blk.0.attn_sinks.weight", np.zeros(4))},
            r"no block here computes: midlayer\.attn_sinks\.weight",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    model: Backbone, metadata: dict[str, Any], tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(HeadlongError, match=message) as refusal:
        build(changed(metadata, tensors), model)
    assert refusal.value.remedy
