"""Models and heads in front of the doctor, loaded once and put together anew for every fault."""

from dataclasses import replace
from pathlib import Path

import pytest

from headlong.config import SamplingParams
from headlong.doctor.draft_checks import Judged
from headlong.doctor.patient import Patient, Visit, admit
from headlong.doctor.probe import (
    PROMPTS,
    Heard,
    ProbeText,
    hear,
    measure_acceptance,
    prompt_ids,
    write_answer,
)
from headlong.heads.head import Head
from headlong.models.transformer import Backbone
from headlong.text.tokenizer import Tokenizer

MAX_TOKENS = 36
MAX_DEPTH = 8


def parts(patient: Patient) -> tuple[Backbone, Tokenizer]:
    """Return what every sound patient has."""
    assert patient.backbone is not None
    assert patient.tokenizer is not None
    return patient.backbone, patient.tokenizer


def hear_answers(patient: Patient, taps: tuple[int, ...], num_prompts: int) -> list[Heard]:
    """Let a patient answer the doctor's first prompts."""
    backbone, tokenizer = parts(patient)
    heard = []
    for task, prompt in list(PROMPTS.items())[:num_prompts]:
        ids = prompt_ids(tokenizer, prompt, backbone)
        answer = write_answer(backbone, ids, tokenizer.eos_ids, MAX_TOKENS, SamplingParams())
        heard.append(hear(backbone, ProbeText(task, ids, answer), taps))
    return heard


def judge(head: Head, heard: list[Heard]) -> Judged:
    """Measure a head on answers."""
    return Judged(head, measure_acceptance(head, heard, MAX_DEPTH), heard)


def admit_again(healthy: Patient, visit: Visit) -> Patient:
    """Admit a visit to a model that is loaded already."""

    def load_again(patient: Patient, progress: object) -> None:
        patient.ops, patient.path = healthy.ops, healthy.path
        patient.checkpoint, patient.loaded = healthy.checkpoint, healthy.loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headlong.doctor.patient._load_model", load_again)
        return admit(visit)


def with_head(healthy: Patient, head: Path) -> Patient:
    """Put another head folder on a loaded model."""
    return admit_again(healthy, replace(healthy.visit, head=head))
