"""What a pass reads: every weight once, and of caches as much as its layers look at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headlong.models.registry import load_backbone
from headlong.models.traffic import (
    CacheTraffic,
    cache_traffic,
    held_bytes,
    idle_parameters,
    pass_bytes,
)
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.ops.layer_state import has_positions
from headlong.weights.checkpoint import open_checkpoint
from mixture_files import EXPERT_SIZE, NUM_CHOSEN, NUM_EXPERTS
from model_files import HIDDEN_SIZE, LATENT, MIXTURE


def test_bytes_of_a_pass_are_the_weights_it_reads(tiny_model_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_model_path)
    backbone = load_backbone(checkpoint, make_ops("numpy")).backbone
    matrices = [t for t in checkpoint.tensors.values() if len(t.shape) == 2]
    is_tied = "output.weight" not in checkpoint.tensors
    read = [t for t in matrices if is_tied or t.name != "token_embd.weight"]
    assert pass_bytes(backbone) == sum(t.to_float32().nbytes for t in read)


def test_passes_read_the_experts_of_their_rows(tiny_backbone: Callable[[str], Backbone]) -> None:
    backbone = tiny_backbone(MIXTURE)
    one = 3 * EXPERT_SIZE * HIDDEN_SIZE * 4  # bytes of an expert in float32
    num_layers = len(backbone.layers) - 1
    every = num_layers * NUM_EXPERTS * one
    held, tied = held_bytes(backbone), backbone.embedding.values.nbytes
    assert pass_bytes(backbone, 1) == held - tied - every + num_layers * NUM_CHOSEN * one
    assert pass_bytes(backbone, 1000) == held - tied
    sizes = [pass_bytes(backbone, num_rows) for num_rows in (1, 2, 3, 4)]
    assert sizes[1] - sizes[0] > sizes[2] - sizes[1] > sizes[3] - sizes[2] > 0
    assert idle_parameters(backbone) * 4 == every - num_layers * NUM_CHOSEN * one


@pytest.mark.parametrize("architecture", ["llama", LATENT])
def test_caches_are_read_as_long_as_they_are(
    tiny_backbone: Callable[[str], Backbone], architecture: str
) -> None:
    backbone = tiny_backbone(architecture)
    cache = backbone.make_cache()
    num_bytes = sum(layer.bytes_per_position for layer in cache.layers if has_positions(layer))
    expected = 100 * num_bytes / pass_bytes(backbone)
    assert cache_traffic(backbone).share([60, 40]) == pytest.approx(expected)


def test_layers_with_a_window_read_no_more_than_that() -> None:
    traffic = CacheTraffic(((None, 0.001), (64, 0.003)))
    assert traffic.share([50]) == pytest.approx(0.2)
    assert traffic.share([1000]) == pytest.approx(1.0 + 0.192)
    assert traffic.share([50, 1000]) == pytest.approx(0.2 + 1.0 + 0.192)
