"""Patients for the doctor's tests: the healthy default model and a tiny one, with their answers."""

from pathlib import Path

import pytest

from headlong.doctor.patient import Patient, Visit, admit
from headlong.doctor.probe import Heard
from patients import hear_answers


@pytest.fixture(scope="session")
def default_patient(default_model_path: Path) -> Patient:
    """The default model with its shipped head."""
    return admit(Visit(str(default_model_path)))


@pytest.fixture(scope="session")
def default_heard(default_patient: Patient) -> list[Heard]:
    """What the default model says, with every tap that a head of a test reads."""
    return hear_answers(default_patient, (1, 2, 3, 14, 15, 16, 26, 27, 28), 3)


@pytest.fixture(scope="session")
def tiny_patient(tiny_model_path: Path) -> Patient:
    """A tiny random model without a head, on the oracle backend."""
    return admit(Visit(str(tiny_model_path), backend="numpy"))
