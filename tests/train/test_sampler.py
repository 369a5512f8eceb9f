"""The sampler against a plain loop: rows must not influence one another."""

import numpy as np
import torch

from headlong.ops.torch.attention import attend_plain
from headlong.train.generate import answer_all
from headlong.train.pointwise import noise
from headlong.train.sampler import Job, Sampler
from headlong.train.teacher import Teacher
from train_parts import some_jobs

EOS = frozenset({7})


def plain_answer(teacher: Teacher, job: Job, capacity: int) -> list[int]:
    """Generate one answer, recomputing the whole sequence for every token."""
    ids: list[int] = job.prompt_ids.tolist()
    limit = min(len(ids) + job.max_tokens, capacity)
    while len(ids) < limit:
        hidden = teacher.forward(torch.tensor([ids]))
        logits = teacher.logits(hidden.normed[-1:])
        gumbel = noise(
            torch.tensor([job.seed]), torch.tensor([len(ids)]), torch.arange(logits.shape[-1])
        )
        ids.append(int((logits + job.temperature * gumbel).argmax()))
        if ids[-1] in EOS:
            break
    return ids


def test_refilled_rows_generate_what_the_plain_loop_generates(every_teacher: Teacher) -> None:
    """Padding, refilled rows and finished rows do not influence other rows."""
    jobs = some_jobs(7, every_teacher.config.vocab_size)
    sampler = Sampler(every_teacher, 3, 80, EOS, attend_plain)
    answers = answer_all(sampler, jobs, refill_every=4)
    with torch.no_grad():
        expected = [plain_answer(every_teacher, job, 80) for job in jobs]
    assert [ids.tolist() for ids in answers] == expected


def test_finished_rows_do_not_change(tiny_teacher: Teacher) -> None:
    sampler = Sampler(tiny_teacher, 2, 64, EOS, attend_plain)
    sampler.load([1], [Job(np.arange(10, 15), 3, 0.0, seed=0)])
    sampler.run(3)
    first = sampler.finished([1])[1].ids.tolist()
    sampler.run(5)
    assert sampler.finished([1])[1].ids.tolist() == first
    assert len(first) == 8
