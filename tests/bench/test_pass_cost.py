"""The measuring of passes, on a tiny model: every number is there and has the right meaning."""

from pathlib import Path
from typing import Any

import pytest

from golden_models import load_with_head, with_fewer_tokens
from headlong.bench import pass_cost
from headlong.bench.pass_cost import PassCost, PassPlan, make_stand_in_head, measure_pass
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
    assert document.pop("pruned_step_ms") is None
    distance, threads = document.pop("core_distance_ns"), document.pop("threads_in_use")
    python_share = document.pop("python_share")
    for name, number in document.items():
        assert name in ("rows", "bytes_by_rows") or number > 0, name
    assert set(document["bytes_by_rows"].values()) == {document["bytes_per_pass"]}
    is_pair = backend == "native" and ops.engine.num_threads == 2
    assert (distance is not None and distance > 0) == is_pair
    is_native = backend == "native"
    assert 1 <= threads <= ops.engine.num_threads if is_native else threads is None
    assert document["prefill_head_share"] < 1
    assert 0 < python_share < 1 if is_native else python_share is None


def test_a_prompt_is_timed_until_it_is_computed(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that computes later would tell how soon it has begun."""
    ops: Any = make_ops("numpy")
    backbone = load_backbone(open_checkpoint(tiny_model_path), ops).backbone
    stage = pass_cost._Stage(backbone, make_stand_in_head(backbone), PLAN)
    read: list[Any] = []
    monkeypatch.setattr(ops, "to_host", read.append)
    stage.prefill_s()
    assert [len(rows) for rows in read] == [1, 1]


def test_more_rows_of_a_mixture_read_more_experts() -> None:
    head = load_with_head("tiny-glm4_moe", "native")
    assert isinstance(head, NextnHead)
    cost = measure_pass(head.backbone, head, PLAN)
    assert cost.bytes_by_rows[1] == cost.bytes_per_pass < cost.bytes_by_rows[3]


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
