"""Answers of the engine: the same rows as the plain sampler has, and no row lost."""

import numpy as np
import pytest

from headlong.config import SamplingParams, StopParams
from headlong.decode.request import Request
from headlong.engine.engine import Engine
from headlong.errors import EngineError
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.train.engine_sampler import EngineSampler
from headlong.train.generate import answer_all
from headlong.train.sampler import Job
from headlong.weights.checkpoint import Checkpoint
from train_parts import some_jobs

EOS = frozenset({7})


@pytest.fixture(scope="module")
def backbone(tiny_checkpoint: Checkpoint) -> Backbone:
    """The tiny model on the native backend."""
    return load_backbone(tiny_checkpoint, make_ops("native")).backbone


def answer_alone(backbone: Backbone, job: Job) -> list[int]:
    """One answer of an engine of its own."""
    engine = Engine.for_model(backbone)
    sampling = SamplingParams(temperature=job.temperature, seed=job.seed)
    stopping = StopParams(max_tokens=job.max_tokens)
    ids = tuple(job.prompt_ids.tolist())
    running = engine.submit(Request(ids, sampling, stopping, "off", EOS))
    while running.finish_reason is None:
        engine.step()
    return [*ids, *(emitted.pick.token_id for emitted in running.take())]


def test_refilled_rows_generate_what_each_would_alone(backbone: Backbone) -> None:
    jobs = some_jobs(11, 266)
    answers = answer_all(EngineSampler(Engine.for_model(backbone), 3, EOS), jobs, refill_every=4)
    assert [ids.tolist() for ids in answers] == [answer_alone(backbone, job) for job in jobs]


def test_an_answer_keeps_its_end_token(backbone: Backbone) -> None:
    """Conversations tell by it whether an answer was cut."""
    whole = answer_alone(backbone, Job(np.arange(10, 15), 8, 0.0, seed=0))
    rows = EngineSampler(Engine.for_model(backbone), 1, frozenset({whole[6]}))
    rows.load([0], [Job(np.arange(10, 15), 8, 0.0, seed=0)])
    rows.run(20)
    assert rows.finished([0])[0].ids.tolist() == whole[: whole.index(whole[6], 5) + 1]


def test_rows_take_memory_as_they_grow(backbone: Backbone) -> None:
    rows = EngineSampler(Engine.for_model(backbone), 2, EOS)
    assert rows.num_bytes == 0
    rows.load([0], [Job(np.arange(10, 40), 50, 0.0, seed=0)])
    assert rows.num_bytes > 0


def test_a_failed_row_ends_generation(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.for_model(backbone)
    rows = EngineSampler(engine, 1, EOS)
    rows.load([0], [Job(np.arange(10, 15), 8, 0.0, seed=0)])
    engine.fail(rows._streams[0][1], EngineError("The pass failed.", "Try again."))
    with pytest.raises(EngineError, match="The pass failed"):
        rows.finished([0])
