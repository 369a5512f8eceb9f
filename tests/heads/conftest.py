"""Fixtures for the heads: tiny backbones deep enough for three taps."""

from collections.abc import Callable

import pytest

import model_files
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.numpy_ops import NumpyOps
from headlong.weights.checkpoint import open_checkpoint

NUM_LAYERS = 7
"""The fewest with which the usual tap layers 2, N // 2 and N - 3 are three."""


@pytest.fixture(scope="session")
def deep_backbone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backbone]:
    """Tiny random backbones of seven layers by architecture name, each made once."""
    made: dict[str, Backbone] = {}

    def make(architecture: str) -> Backbone:
        if architecture not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(model_files.NUM_LAYERS, architecture, NUM_LAYERS)
                folder = tmp_path_factory.mktemp(f"deep-{architecture}")
                checkpoint = open_checkpoint(model_files.write_hf_folder(folder, architecture))
            made[architecture] = load_backbone(checkpoint, NumpyOps()).backbone
        return made[architecture]

    return make


@pytest.fixture(scope="session")
def backbone(deep_backbone: Callable[[str], Backbone]) -> Backbone:
    """A Llama of seven layers."""
    return deep_backbone("llama")
