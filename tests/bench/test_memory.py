"""Memory as planned and as measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from headlong.bench.memory import (
    Footprint,
    ModelSizes,
    measure_footprint,
    plan_memory,
    resident_bytes,
)
from headlong.bench.pass_cost import make_stand_in_head
from headlong.cache.sequence_state import GROWTH
from headlong.errors import RequestError
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint

SIZES = ModelSizes(
    weights_bytes=1_000_000,
    kv_bytes_per_token=100,
    head_bytes=20_000,
    head_kv_bytes_per_token=3,
    context_length=4096,
    process_bytes=50_000,
)


def test_parts_add_up() -> None:
    need = plan_memory(SIZES, context=512, concurrency=4, prefix_bytes=7_000)
    assert need.kv_bytes == 512 * 4 * 100
    assert need.head_kv_bytes == 512 * 4 * 3
    assert need.plain_bytes == 1_000_000 + 204_800 + 7_000 + 50_000
    assert need.mtp_bytes == need.plain_bytes + 20_000 + 6_144
    assert need.to_dict()["mtp_bytes"] == need.mtp_bytes


def test_recurrent_states_count_for_every_request_and_not_for_its_length() -> None:
    sizes = replace(SIZES, state_bytes_per_sequence=900)
    for context in (64, 4096):
        plain, hybrid = (plan_memory(one, context, 3, 0) for one in (SIZES, sizes))
        assert hybrid.plain_bytes - plain.plain_bytes == hybrid.state_bytes == 2_700


def test_contexts_take_whole_steps_of_the_cache() -> None:
    assert plan_memory(SIZES, 2 * GROWTH, 1, 0).kv_bytes == 2 * GROWTH * 100
    assert plan_memory(SIZES, 2 * GROWTH + 1, 1, 0).kv_bytes == 3 * GROWTH * 100


def test_context_beyond_the_models_is_refused_with_both_numbers() -> None:
    with pytest.raises(RequestError, match=r"5,000 tokens; the model's holds 4,096"):
        plan_memory(SIZES, 5000, 1, 0)


@pytest.mark.parametrize(("context", "concurrency", "kept"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_impossible_workers_are_refused(context: int, concurrency: int, kept: int) -> None:
    with pytest.raises(RequestError):
        plan_memory(SIZES, context, concurrency, kept)


def test_process_has_a_size() -> None:
    assert resident_bytes() > 10_000_000


@pytest.mark.parametrize("backend", ["native", "numpy"])
def test_parts_are_what_was_packed_and_cached(tiny_model_path: Path, backend: str) -> None:
    ops = make_ops(backend)
    checkpoint = open_checkpoint(tiny_model_path)
    backbone = load_backbone(checkpoint, ops).backbone
    head = make_stand_in_head(backbone)
    footprint = measure_footprint(backbone, head, resident_bytes())
    matrices = [t for t in checkpoint.tensors.values() if len(t.shape) == 2]
    packed = sum(ops.matrix_bytes(tensor) for tensor in matrices)
    assert packed <= footprint.weights_bytes <= 1.5 * packed + 2**16  # tiles are padded
    caches = (backbone.make_cache(), head.make_cache())
    assert footprint.num_positions == backbone.config.context_length
    assert footprint.kv_bytes >= sum(cache.bytes_for(footprint.num_positions) for cache in caches)
    assert footprint.head_bytes > 0


def test_what_is_not_known_is_the_rest() -> None:
    footprint = Footprint(2048, 240, program_bytes=50, weights_bytes=90, head_bytes=10, kv_bytes=40)
    assert footprint.other_bytes == 50
    assert footprint.share_of_weights == pytest.approx(2.4)
    assert footprint.to_dict()["other_bytes"] == 50
