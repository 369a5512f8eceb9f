"""A head's own embedding is loaded only if it is more than a copy of the model's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from headlong.arrays import FloatArray
from headlong.config import ModelOptions
from headlong.heads.choose_head import choose_head, share_embedding
from headlong.heads.eagle3 import Eagle3Head
from headlong.heads.head_files import save_head
from headlong.heads.head_weights import HeadWeights, store_array
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.numpy.ops import NumpyOps
from headlong.text.tokenizer import load_tokenizer
from headlong.weights.checkpoint import Checkpoint, open_checkpoint
from headlong.weights.tensors import StoredTensor
from random_heads import random_eagle3
from talking_model import write_talking_model

NAME = "embed_tokens.weight"


@pytest.fixture(name="model", scope="module")
def write_model(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A tiny model that talks."""
    return open_checkpoint(write_talking_model(tmp_path_factory.mktemp("choose") / "tiny.gguf"))


@pytest.fixture(name="own", scope="module")
def load_own(model: Checkpoint) -> Backbone:
    """Its backbone."""
    return load_backbone(model, NumpyOps()).backbone


def with_embedding(backbone: Backbone, values: FloatArray) -> HeadWeights:
    """Return a head that brings an embedding."""
    weights = random_eagle3(backbone.config)
    return replace(weights, tensors={**weights.tensors, NAME: store_array(NAME, values)})


def embedding_of(model: Checkpoint) -> FloatArray:
    """Return the model's embedding."""
    return model.tensors["token_embd.weight"].to_float32()


def test_copy_of_the_models_embedding_is_not_loaded(
    model: Checkpoint, own: Backbone, tmp_path: Path
) -> None:
    save_head(tmp_path, with_embedding(own, embedding_of(model)))
    options = ModelOptions(head=str(tmp_path))
    head = choose_head(model, own, load_tokenizer(model), options).head
    assert isinstance(head, Eagle3Head)
    assert head.embedding is own.embedding
    assert head.report.unused_tensors == (NAME,)


def test_copy_is_known_whatever_the_model_is_rounded_to(model: Checkpoint, own: Backbone) -> None:
    values = embedding_of(model)
    kind = GGMLQuantizationType.Q4_0
    rounded = StoredTensor("token_embd.weight", values.shape, kind, quantize(values, kind))
    coarse = replace(model, tensors={**model.tensors, rounded.name: rounded})
    assert NAME not in share_embedding(with_embedding(own, values), coarse, own).tensors


def test_another_embedding_is_the_heads_own(model: Checkpoint, own: Backbone) -> None:
    values = embedding_of(model)
    other = with_embedding(own, np.roll(values, 1, axis=0))
    assert share_embedding(other, model, own) is other
    broken = with_embedding(own, np.full_like(values, np.nan))
    assert share_embedding(broken, model, own) is broken
    copied = with_embedding(own, values)
    trained = replace(copied, config={**copied.config, "embed_requires_grad": True})
    assert share_embedding(trained, model, own) is trained
    scaled = replace(own, embedding_scale=8.0)
    assert share_embedding(copied, model, scaled) is copied
