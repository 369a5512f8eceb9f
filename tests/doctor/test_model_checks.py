"""Models and tokenizers that do not belong together, or are not whole."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_files
from headlong.doctor.finding import Finding, Severity
from headlong.doctor.model_checks import check_model, check_tokenizer
from headlong.doctor.subject import ExamOptions, Subject, load_subject
from native_heads import write_folder_with
from subjects import parts
from talking_model import write_talking_model


def admit_tiny(path: Path, **tokenizer_changes: Any) -> Subject:
    """Admit a tiny model with another tokenizer."""
    return load_subject(
        ExamOptions(str(write_talking_model(path, **tokenizer_changes)), backend="numpy")
    )


def find(subject: Subject, check: str) -> Finding:
    """Return what was found about one part of the text side."""
    return next(finding for finding in check_tokenizer(subject) if finding.check == check)


def test_default_model_is_sound(default_subject: Subject) -> None:
    assert check_model(default_subject).level is Severity.OK
    assert {finding.level for finding in check_tokenizer(default_subject)} == {Severity.OK}


def test_experts_and_recurrent_layers_are_told(tmp_path: Path) -> None:
    told = {model_files.MIXTURE: "2 of 8 experts", model_files.HYBRID: "MB of a sequence"}
    for name, words in told.items():
        folder = model_files.write_hf_folder(tmp_path / name, name)
        found = check_model(load_subject(ExamOptions(str(folder), backend="numpy")))
        assert found.level is Severity.OK
        assert words in found.seen


def test_model_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    whole = write_talking_model(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    subject = load_subject(ExamOptions(str(tmp_path / "cut.gguf"), backend="numpy"))
    found = check_model(subject)
    assert found.level is Severity.FAULT
    assert found.remedy
    assert [finding.level for finding in check_tokenizer(subject)] == [Severity.SKIPPED]


def test_missing_model_is_a_fault_not_the_end(tmp_path: Path) -> None:
    assert check_model(load_subject(ExamOptions(str(tmp_path / "no.gguf")))).level is Severity.FAULT


def test_tensors_without_a_place_are_named(tmp_path: Path) -> None:
    extra = {f"model.adapter_{i}.weight": np.ones((4, 4), dtype=np.float32) for i in range(7)}
    folder = write_folder_with(tmp_path / "model", "llama", extra)
    found = check_model(load_subject(ExamOptions(str(folder), backend="numpy")))
    assert found.level is Severity.WARNING
    assert "7 tensors have no place" in found.seen
    assert "and 2 more" in found.seen


def test_tokenizer_with_ids_beyond_the_embedding_is_a_fault(tmp_path: Path) -> None:
    """The model would be asked for rows it does not have."""
    subject = admit_tiny(tmp_path / "tiny.gguf")
    backbone, _ = parts(subject)
    assert subject.loaded is not None
    smaller = replace(backbone, config=replace(backbone.config, vocab_size=200))
    subject.loaded = replace(subject.loaded, backbone=smaller)
    found = find(subject, "tokenizer")
    assert found.level is Severity.FAULT
    assert found.numbers == {"tokens": 266, "embedding_rows": 200}
    assert find(subject, "chat template").level is Severity.FAULT
    assert find(subject, "end of turn").level is Severity.FAULT


def test_tokenizer_of_a_smaller_model_is_a_warning(tiny_subject: Subject) -> None:
    backbone, _ = parts(tiny_subject)
    assert tiny_subject.loaded is not None
    larger = replace(backbone, config=replace(backbone.config, vocab_size=500))
    subject = replace(tiny_subject, loaded=replace(tiny_subject.loaded, backbone=larger))
    assert find(subject, "tokenizer").level is Severity.WARNING


def test_missing_template_and_end_are_warnings(tmp_path: Path) -> None:
    subject = admit_tiny(tmp_path / "a.gguf", chat_template=None)
    assert find(subject, "chat template").level is Severity.WARNING
    with pytest.MonkeyPatch.context() as patch:
        assert subject.tokenizer is not None
        patch.setattr(subject.tokenizer, "eos_ids", frozenset())
        found = find(subject, "end of turn")
    assert found.level is Severity.WARNING
    assert "max_tokens" in found.seen


def test_broken_template_is_a_fault(tmp_path: Path) -> None:
    subject = admit_tiny(tmp_path / "a.gguf", chat_template="{{ raise_exception('no') }}")
    assert find(subject, "chat template").level is Severity.FAULT


def test_text_that_does_not_come_back_is_a_fault(
    tiny_subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tokenizer = parts(tiny_subject)
    monkeypatch.setattr(tokenizer, "decode", lambda ids: "garbled")
    found = find(tiny_subject, "round trip")
    assert found.level is Severity.FAULT
    assert "garbled" in found.seen


def test_unusable_tokenizer_leaves_the_model_alone(tmp_path: Path) -> None:
    path = model_files.write_gguf(tmp_path / "mute.gguf", "llama")
    subject = load_subject(ExamOptions(str(path), backend="numpy"))
    assert check_model(subject).level is Severity.OK
    assert [finding.level for finding in check_tokenizer(subject)] == [Severity.FAULT]
