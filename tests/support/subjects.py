"""Models and heads in front of the doctor, loaded once and put together anew for every fault."""

from dataclasses import replace
from pathlib import Path

import pytest

from headlong.config import SamplingParams
from headlong.doctor.draft_checks import Judged
from headlong.doctor.probe import (
    PROMPTS,
    ProbeRows,
    ProbeText,
    measure_acceptance,
    prompt_ids,
    read_rows,
    write_answer,
)
from headlong.doctor.subject import ExamOptions, Subject, load_subject
from headlong.heads.head import Head
from headlong.models.transformer import Backbone
from headlong.text.tokenizer import Tokenizer

MAX_TOKENS = 36
MAX_DEPTH = 8


def parts(subject: Subject) -> tuple[Backbone, Tokenizer]:
    """Return what every sound subject has."""
    assert subject.backbone is not None
    assert subject.tokenizer is not None
    return subject.backbone, subject.tokenizer


def probe_answers(subject: Subject, taps: tuple[int, ...], num_prompts: int) -> list[ProbeRows]:
    """Let a subject answer the doctor's first prompts."""
    backbone, tokenizer = parts(subject)
    probed = []
    for task, prompt in list(PROMPTS.items())[:num_prompts]:
        ids = prompt_ids(tokenizer, prompt, backbone)
        answer = write_answer(backbone, ids, tokenizer.eos_ids, MAX_TOKENS, SamplingParams())
        probed.append(read_rows(backbone, ProbeText(task, ids, answer), taps))
    return probed


def judge(head: Head, probed: list[ProbeRows]) -> Judged:
    """Measure a head on answers."""
    return Judged(head, measure_acceptance(head, probed, MAX_DEPTH), probed)


def load_subject_again(healthy: Subject, options: ExamOptions) -> Subject:
    """Admit a options to a model that is loaded already."""

    def load_again(subject: Subject, progress: object) -> None:
        subject.ops, subject.path = healthy.ops, healthy.path
        subject.checkpoint, subject.loaded = healthy.checkpoint, healthy.loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headlong.doctor.subject._load_model", load_again)
        return load_subject(options)


def with_head(healthy: Subject, head: Path) -> Subject:
    """Put another head folder on a loaded model."""
    return load_subject_again(healthy, replace(healthy.options, head=head))
