"""Memory by parts: what is counted is what is there, and the sum is the process."""

from pathlib import Path

import pytest

from headlong.bench.footprint import Footprint, measure_footprint
from headlong.bench.memory import resident_bytes
from headlong.bench.stand_in_head import make_stand_in_head
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint


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
