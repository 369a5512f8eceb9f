"""Rounds that are recorded once and replayed, as a card replays them: the same tokens."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.device.runner import DeviceRunner
from headlong.decode.request import Request
from headlong.decode.round import RoundResult
from headlong.decode.step_runner import StepRunner
from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.heads.head_weights import HeadKind

torch = pytest.importorskip("torch")
from device_engines import (  # noqa: E402  # needs torch
    device_drafters,
    device_engine,
    run_all,
    tiny_on_device,
    token_ids,
)
from headlong.ops.cuda import graph_replay  # noqa: E402
from headlong.ops.cuda.ops import CudaOps  # noqa: E402
from recorded_graphs import RecordedBlocks  # noqa: E402

torch.set_num_threads(1)


def draw(rng: random.Random, vocab_size: int) -> Request:
    """Draw a request; some are picked by the host, some have much text to copy."""
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.0]),
        top_p=rng.choice([1.0, 0.9]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.2]),
        seed=rng.randrange(2**32),
    )
    prompt = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, 30)))
    stopping = StopParams(rng.randint(4, 24), ignore_eos=True)
    return Request(prompt * rng.choice([1, 1, 2]), sampling, stopping, rng.choice([1, 3, "auto"]))


@pytest.mark.parametrize("kind", ["nextn", "eagle3"])
@pytest.mark.parametrize("most_graphs", [64, 2])
def test_what_is_replayed_writes_what_is_computed(
    kind: HeadKind, most_graphs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards numbers that stay in a graph, and results that the next round overwrites."""
    monkeypatch.setattr(graph_replay, "MOST_GRAPHS", most_graphs)
    backbone = tiny_on_device(tmp_path, "llama")
    requests = [draw(random.Random(seed), backbone.config.vocab_size) for seed in range(8)]
    plain = [replace(request, mtp="off") for request in requests]
    wanted = [token_ids(run_all(Engine(StepRunner(backbone)), [one])[0]) for one in plain]
    ops = backbone.ops
    assert isinstance(ops, CudaOps)
    ops.paged = blocks = RecordedBlocks(ops)
    monkeypatch.setattr(graph_replay, "capture", blocks.capture)
    engine = device_engine(backbone, device_drafters(kind, backbone), EngineLimits(max_running=3))
    assert isinstance(engine.runner, DeviceRunner)
    replay = engine.runner.rounds.replay
    replay.captures = True
    assert [token_ids(one) for one in run_all(engine, requests)] == wanted
    assert [token_ids(one) for one in run_all(engine, plain)] == wanted
    assert replay.problem is None
    assert replay.num_prepared > 5
    assert len(replay) == min(most_graphs, replay.num_prepared)


def test_a_round_that_was_captured_first_says_nothing_of_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards drafts that look expensive because their first round was compiled and captured."""
    backbone = tiny_on_device(tmp_path, "llama")
    ops = backbone.ops
    assert isinstance(ops, CudaOps)
    ops.paged = blocks = RecordedBlocks(ops)
    monkeypatch.setattr(graph_replay, "capture", blocks.capture)
    engine = device_engine(backbone, device_drafters("nextn", backbone, looks_up=False))
    assert isinstance(engine.runner, DeviceRunner)
    replay, make = engine.runner.rounds.replay, engine.runner.round
    replay.captures = True
    told: list[tuple[bool, bool]] = []

    def watched(*arguments: Any) -> list[RoundResult]:
        before = replay.num_prepared
        results = make(*arguments)
        told.append((replay.num_prepared == before, results[0].is_representative))
        return results

    monkeypatch.setattr(DeviceRunner, "round", lambda _, *rest: watched(*rest))
    stopping = StopParams(60, ignore_eos=True)
    run_all(engine, [Request((1, 2, 3), SamplingParams(), stopping, mtp) for mtp in (2, "auto")])
    assert {typical for typical, _ in told} == {True, False}
    assert all(typical == said for typical, said in told)
