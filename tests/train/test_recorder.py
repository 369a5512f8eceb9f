"""Recorded hidden rows: those of a forward pass, for every answer, on disk and back."""

import pytest
import torch

from headlong.engine.engine import Engine
from headlong.engine.limits import EngineLimits
from headlong.models.registry import load_backbone
from headlong.models.transformer import Backbone
from headlong.ops.backends import make_ops
from headlong.train.engine_sampler import EngineSampler
from headlong.train.recorder import StateRecorder
from headlong.train.sampler import FinishedRow, Job
from headlong.train.teacher import Teacher
from headlong.weights.checkpoint import Checkpoint
from train_parts import some_jobs

TAPS = (2, 3, 4)


@pytest.fixture(scope="module")
def backbone(tiny_checkpoint: Checkpoint) -> Backbone:
    """The tiny model on the native backend."""
    return load_backbone(tiny_checkpoint, make_ops("native")).backbone


def generate(
    backbone: Backbone, jobs: list[Job], taps: tuple[int, ...] = TAPS
) -> list[FinishedRow]:
    """Generate answers and record their hidden rows."""
    recorder = StateRecorder(taps)
    limits = EngineLimits(max_running=len(jobs), honour_k=True)
    engine = Engine.for_model(backbone, recorder, limits)
    rows = EngineSampler(engine, len(jobs), frozenset(), recorder)
    rows.load(range(len(jobs)), jobs)
    rows.run(max(job.max_tokens for job in jobs))
    return list(rows.finished(range(len(jobs))).values())


@pytest.mark.parametrize("taps", [TAPS, ()], ids=["taps", "no taps"])
def test_recorded_rows_are_those_of_a_forward_pass(
    backbone: Backbone, tiny_teacher: Teacher, taps: tuple[int, ...]
) -> None:
    for ids, states in generate(backbone, some_jobs(7, 266), taps):
        assert states is not None
        with torch.no_grad():
            hidden = tiny_teacher.forward(torch.from_numpy(ids[None]), taps)
        parts = [hidden.normed] if hidden.taps is None else [hidden.normed, hidden.taps]
        expected = torch.cat(parts, 1)[:-1]
        assert states.shape == expected.shape
        # The engine's weights and activations are of 8 bits, the recording of 16.
        error = (states.float() - expected.float()).norm() / expected.float().norm()
        assert error < 0.05
