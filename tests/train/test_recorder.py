"""Recorded hidden rows: those of a forward pass, for every answer, on disk and back."""

import numpy as np
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
    backbone: Backbone, jobs: list[Job], taps: tuple[int, ...] = TAPS, num_rows: int = 7
) -> list[FinishedRow]:
    """Generate answers and record their hidden rows."""
    recorder = StateRecorder(taps)
    limits = EngineLimits(max_running=num_rows, honour_k=True)
    rows = EngineSampler(
        Engine.for_model(backbone, recorder, limits), num_rows, frozenset(), recorder
    )
    done: list[FinishedRow] = []
    for first in range(0, len(jobs), num_rows):
        some = jobs[first : first + num_rows]
        rows.load(range(len(some)), some)
        rows.run(max(job.max_tokens for job in some))
        done += rows.finished(range(len(some))).values()
    assert not recorder._recordings, "what was taken is let go of"
    return done


def assert_recorded(rows: list[FinishedRow], teacher: Teacher, taps: tuple[int, ...]) -> None:
    """Compare recorded rows with those of a forward pass."""
    for ids, states in rows:
        assert states is not None
        with torch.no_grad():
            hidden = teacher.forward(torch.from_numpy(ids[None]), taps)
        parts = [hidden.normed] if hidden.taps is None else [hidden.normed, hidden.taps]
        expected = torch.cat(parts, 1)[:-1]
        assert states.shape == expected.shape
        # The engine's weights and activations are of 8 bits, the recording of 16.
        error = (states.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1)
        assert error.max() < 0.1


@pytest.mark.parametrize("taps", [TAPS, ()], ids=["taps", "no taps"])
def test_recorded_rows_are_those_of_a_forward_pass(
    backbone: Backbone, tiny_teacher: Teacher, taps: tuple[int, ...]
) -> None:
    assert_recorded(generate(backbone, some_jobs(7, 266), taps), tiny_teacher, taps)


def test_answers_to_prompts_that_begin_alike_have_all_rows(
    backbone: Backbone, tiny_teacher: Teacher
) -> None:
    """Their common rows are run once, for the first of them; the others share its recording."""
    common = np.arange(20, 90)
    jobs = [Job(np.append(common[: 70 - i], i), 6 + i, 0.0, seed=i) for i in range(9)]
    assert_recorded(generate(backbone, jobs, num_rows=3), tiny_teacher, TAPS)
