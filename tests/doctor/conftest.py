"""Patients for the doctor's tests: the healthy default model and a tiny one, with their answers."""

from pathlib import Path

import pytest

from headlong.doctor.probe import ProbeRows
from headlong.doctor.subject import ExamOptions, Subject, load_subject
from subjects import probe_answers


@pytest.fixture(scope="session")
def default_subject(default_model_path: Path) -> Subject:
    """The default model with its shipped head."""
    return load_subject(ExamOptions(str(default_model_path)))


@pytest.fixture(scope="session")
def default_heard(default_subject: Subject) -> list[ProbeRows]:
    """What the default model says, with every tap that a head of a test reads."""
    return probe_answers(default_subject, (1, 2, 3, 14, 15, 16, 26, 27, 28), 3)


@pytest.fixture(scope="session")
def tiny_subject(tiny_model_path: Path) -> Subject:
    """A tiny random model without a head, on the oracle backend."""
    return load_subject(ExamOptions(str(tiny_model_path), backend="numpy"))
