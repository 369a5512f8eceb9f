"""The measuring of passes, on a tiny model: every number is there and has the right meaning."""

from pathlib import Path
from typing import Any

import pytest

from golden_models import load_with_head, with_fewer_tokens
from headlong.bench.pass_cost import PassCost, PassPlan, measure_pass
from headlong.heads.nextn import NextnHead
from headlong.models.registry import load_backbone
from headlong.ops.backends import make_ops
from headlong.weights.checkpoint import open_checkpoint

PLAN = PassPlan(row_counts=(1, 3), context=20, prefill=40, num_rounds=3)


@pytest.mark.parametrize("backend", ["native", "numpy"])
def test_every_number_is_measured(tiny_model_path: Path, backend: str) -> None:
    ops: Any = make_ops(backend)
    backbone = load_backbone(open_checkpoint(tiny_model_path), ops).backbone
    cost = measure_pass(backbone, None, PLAN)
    document = cost.to_dict()
    assert list(document["rows"]) == ["1", "3"]
    distance = document.pop("core_distance_ns")
    assert document.pop("pruned_step_ms") is None
    for name, number in document.items():
        assert name == "rows" or number > 0, name
    is_pair = backend == "native" and ops.engine.num_threads == 2
    assert (distance is not None and distance > 0) == is_pair
    assert document["prefill_head_share"] < 1
    assert 0 < document["python_share"] <= 1


def test_steps_from_fewer_tokens_are_measured_beside_the_others() -> None:
    head = load_with_head("tiny-qwen3_5", "native")
    assert isinstance(head, NextnHead)
    head = with_fewer_tokens(head, "tiny-qwen3_5", "auto")
    cost = measure_pass(head.backbone, head, PLAN)
    assert cost.pruned_step_ms is not None
    assert cost.pruned_step_ms > 0


def test_bandwidth_share_is_of_one_row() -> None:
    cost = PassCost(40.0, 100_000_000, {1: 5.0, 4: 9.0}, 0.1, 0.1, 0.1, 1000.0, 0.02, 0.01)
    assert cost.bandwidth_share == pytest.approx(0.5)
