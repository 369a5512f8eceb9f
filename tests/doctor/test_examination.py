"""The whole examination, on healthy and on hopeless subjects."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headlong.doctor import examination, head_checks
from headlong.doctor.examination import Examination, examine
from headlong.doctor.finding import Finding, Severity
from headlong.doctor.subject import ExamOptions, Subject, load_subject
from headlong.heads.head_files import save_head
from headlong.heads.head_weights import HeadKind, store_arrays
from native_heads import write_folder_with
from random_heads import arrays_of, random_head
from subjects import parts
from talking_model import write_talking_model


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode as little as can be judged."""
    monkeypatch.setattr(examination, "_QUICK_BUDGET_S", 0.5)
    monkeypatch.setattr(examination, "_MIN_TOKENS", 16)
    monkeypatch.setattr(examination, "_SPEED_REPEATS", 1)


def examine_quietly(subject: Subject) -> Examination:
    """Examine without telling anyone."""
    return examine(subject, lambda title, finding: None)


def levels(found: Examination, *, but: str = "machine") -> dict[str, Severity]:
    """Return the level of every check, the machine's apart: nobody knows where tests run."""
    return {finding.check: finding.level for title, finding in found.findings if title != but}


def test_healthy_default_model_is_green(default_model_path: Path) -> None:
    told: list[tuple[str, Finding]] = []
    looked_at: list[str] = []
    subject = load_subject(ExamOptions(str(default_model_path), is_quick=True))
    found = examine(subject, lambda *finding: told.append(finding), looked_at.append)
    assert told == found.findings
    assert "exactness" in {finding.check for _, finding in told}
    assert len(looked_at) >= 10
    seen = levels(found)
    # A busy machine may make drafts not worth it, or too few of them be looked at to compare.
    assert seen.pop("best K") in (Severity.OK, Severity.WARNING)
    assert seen.pop("record") in (Severity.OK, Severity.SKIPPED)
    assert set(seen.values()) == {Severity.OK}, seen
    document = found.to_dict()
    assert document["healthy"] is True
    assert document["num_faults"] == 0
    assert 0 <= document["best_k"] <= 8
    assert document["acceptance_length"] > 1.5
    assert document["head"] == "shipped with Headlong"


def test_head_that_does_not_load_does_not_stop_the_rest(
    tiny_subject: Subject, tiny_model_path: Path, tmp_path: Path
) -> None:
    weights = random_head("eagle3", parts(tiny_subject)[0].config)
    spoiled = arrays_of(weights)["fc.weight"] * np.float32("nan")
    tensors = {**weights.tensors, **store_arrays({"fc.weight": spoiled}, "float32")}
    save_head(tmp_path / "head", replace(weights, tensors=tensors))
    options = ExamOptions(str(tiny_model_path), tmp_path / "head", backend="numpy", is_quick=True)
    found = examine_quietly(load_subject(options))
    seen = levels(found)
    assert seen["head"] is Severity.FAULT
    assert seen["head weights"] is Severity.FAULT
    assert seen["drafts"] is Severity.SKIPPED
    assert seen["exactness"] is Severity.OK  # with n-grams
    assert seen["pass cost"] is Severity.OK
    assert not found.to_dict()["healthy"]


def test_model_that_does_not_load_leaves_the_machine_to_look_at(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF nonsense")
    found = examine_quietly(load_subject(ExamOptions(str(tmp_path / "bad.gguf"))))
    seen = levels(found)
    assert seen["model"] is Severity.FAULT
    assert {seen[name] for name in ("head", "drafts", "tokenizer")} == {Severity.SKIPPED}
    assert any(title == "machine" for title, _ in found.findings)


def test_model_that_computes_nonsense_is_a_fault(tmp_path: Path) -> None:
    """NaN in a matrix is only seen when the model speaks."""
    path = write_talking_model(tmp_path / "tiny.gguf")
    subject = load_subject(ExamOptions(str(path), backend="numpy", is_quick=True))
    matrix = parts(subject)[0].lm_head.weight
    matrix.values = matrix.values * np.float32("nan")
    found = examine_quietly(subject)
    faults = [finding for _, finding in found.findings if finding.level is Severity.FAULT]
    assert any("NaN" in finding.seen for finding in faults)


@pytest.mark.parametrize("kind", ["eagle3", "nextn", "medusa", "meta"])
def test_useless_head_of_every_kind_is_found_dead(
    kind: HeadKind, tiny_subject: Subject, tiny_model_path: Path, tmp_path: Path
) -> None:
    config = parts(tiny_subject)[0].config
    save_head(tmp_path / "head", random_head(kind, config))
    options = ExamOptions(str(tiny_model_path), tmp_path / "head", backend="numpy", is_quick=True)
    seen = levels(examine_quietly(load_subject(options)))
    assert seen["head"] is Severity.OK
    assert seen["drafts"] is Severity.FAULT
    assert seen["exactness"] is Severity.OK
    assert seen["trained for"] is Severity.SKIPPED


def test_draft_model_is_judged_by_real_decoding(tiny_model_path: Path) -> None:
    """A model that drafts for itself is always right, and far too dear."""
    name = str(tiny_model_path)
    found = examine_quietly(
        load_subject(ExamOptions(name, draft_model=name, backend="numpy", is_quick=True))
    )
    seen = levels(found)
    assert seen["head"] is Severity.SKIPPED
    assert seen["drafts"] is Severity.OK
    assert found.number("drafts", "acceptance_length") > 4
    assert seen["best K"] in (Severity.OK, Severity.WARNING)


def test_draft_model_with_other_tokens_is_a_fault(
    tiny_model_path: Path, default_model_path: Path
) -> None:
    options = ExamOptions(
        str(tiny_model_path),
        draft_model=str(default_model_path),
        backend="numpy",
        is_quick=True,
    )
    seen = levels(examine_quietly(load_subject(options)))
    assert seen["draft model"] is Severity.FAULT
    assert seen["exactness"] is Severity.OK


def test_check_that_breaks_is_a_finding_of_its_own(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*args: object) -> Finding:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(head_checks, "check_numbers", break_down)
    found = examine_quietly(
        load_subject(ExamOptions(str(tiny_model_path), backend="numpy", is_quick=True))
    )
    broken = [finding for _, finding in found.findings if "itself broke" in finding.seen]
    assert len(broken) == 1
    assert "ZeroDivisionError: oh" in broken[0].seen
    assert levels(found)["exactness"] is Severity.OK


def test_model_without_tokenizer_is_still_examined(tmp_path: Path) -> None:
    folder = write_folder_with(tmp_path / "mute", "llama", {})
    found = examine_quietly(load_subject(ExamOptions(str(folder), backend="numpy", is_quick=True)))
    seen = levels(found)
    assert seen["tokenizer"] is Severity.FAULT
    assert seen["exactness"] is Severity.OK
