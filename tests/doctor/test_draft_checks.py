"""Faults that only show in what a head drafts, planted in the shipped head and in fitted ones."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from faulty_heads import Arrays, copy_shipped
from headlong.doctor.draft_checks import (
    Judged,
    check_alive,
    check_coverage,
    check_precision,
    check_record,
    describe_probe,
    judge_lengths,
)
from headlong.doctor.finding import Severity
from headlong.doctor.head_checks import HeadRecord
from headlong.doctor.probe import PROMPTS_ID, AcceptedCounts, ProbeRows
from headlong.doctor.subject import Subject
from headlong.heads.eagle3 import Eagle3Head
from subjects import judge, with_head

HIDDEN = 576


@pytest.fixture(scope="module")
def healthy(default_subject: Subject, default_heard: list[ProbeRows]) -> Judged:
    """The shipped head on the default model's answers."""
    assert default_subject.head is not None
    return judge(default_subject.head, default_heard)


def test_shipped_head_drafts_well(healthy: Judged, default_subject: Subject) -> None:
    assert check_alive(healthy).level is Severity.OK
    assert check_coverage(healthy).level is Severity.OK
    assert check_precision(healthy, default_subject.build_head("stored"), "q8").level is Severity.OK


def test_outliers_that_packing_cannot_hold_are_noticed(
    default_subject: Subject, default_heard: list[ProbeRows], tmp_path: Path
) -> None:
    """The same maths in 16 bits; in groups of 8-bit numbers the other 31 are crushed."""

    def stretch(arrays: Arrays) -> None:
        arrays["norm.weight"] = arrays["norm.weight"].copy()
        arrays["lm_head.weight"] = arrays["lm_head.weight"].copy()
        arrays["norm.weight"][::32] /= 256
        arrays["lm_head.weight"][:, ::32] *= 256

    subject = with_head(default_subject, copy_shipped(tmp_path / "head", stretch))
    assert subject.head is not None
    found = check_precision(judge(subject.head, default_heard), subject.build_head("stored"), "q8")
    assert found.level in (Severity.WARNING, Severity.FAULT)
    assert "--head-quant stored" in found.remedy
    assert found.numbers["stored_length"] > found.numbers["packed_length"] + 0.2


def test_dead_head_is_a_fault(
    default_subject: Subject, default_heard: list[ProbeRows], tmp_path: Path
) -> None:
    def scramble(arrays: Arrays) -> None:
        arrays["lm_head.weight"] = arrays["lm_head.weight"][::-1]

    subject = with_head(default_subject, copy_shipped(tmp_path / "head", scramble))
    assert subject.head is not None
    found = check_alive(judge(subject.head, default_heard))
    assert found.level is Severity.FAULT
    assert "dead" in found.seen


@pytest.mark.parametrize(
    ("at_depth", "level"),
    [([0.1, 0.0], Severity.FAULT), ([0.3, 0.1], Severity.WARNING), ([0.6, 0.3], Severity.OK)],
)
def test_bars_between_dead_weak_and_well(at_depth: Sequence[float], level: Severity) -> None:
    found = judge_lengths(at_depth, "head", {})
    assert found.level is level
    assert found.numbers["acceptance_length"] == pytest.approx(1 + sum(at_depth))


def test_vocabulary_that_misses_the_models_words_is_a_warning(healthy: Judged) -> None:
    said = [token for probed in healthy.probed for token in probed.text.answer_ids]
    rare = np.setdiff1d(np.arange(49_152), said)[:12_288]
    assert isinstance(healthy.head, Eagle3Head)
    found = check_coverage(replace(healthy, head=replace(healthy.head, vocabulary=rare)))
    assert found.level is Severity.WARNING
    assert found.numbers["coverage"] == 0.0


def test_own_record_is_met(healthy: Judged) -> None:
    record = HeadRecord(probe=describe_probe(healthy, "native"))
    assert check_record(healthy, record).level is Severity.OK


@pytest.mark.parametrize(
    ("lost", "level"), [(0.0, Severity.OK), (0.45, Severity.WARNING), (0.9, Severity.FAULT)]
)
def test_acceptance_under_its_record_is_noticed(
    healthy: Judged, lost: float, level: Severity
) -> None:
    """The same head, with a share of its drafts refused since it was recorded."""
    record = HeadRecord(probe=describe_probe(healthy, "native"))
    rng = np.random.default_rng(0)
    accepted = tuple(
        np.where(rng.random(len(counts)) < lost, 0, counts)
        for counts in healthy.acceptance.accepted
    )
    worse = replace(healthy, acceptance=AcceptedCounts(accepted, healthy.acceptance.max_depth))
    found = check_record(worse, record)
    assert found.level is level, found.numbers


def test_shorter_look_is_held_against_the_same_positions(healthy: Judged) -> None:
    record = HeadRecord(probe=describe_probe(healthy, "native"))
    depth = healthy.acceptance.max_depth
    short = AcceptedCounts(tuple(counts[:9] for counts in healthy.acceptance.accepted), depth)
    found = check_record(replace(healthy, acceptance=short), record)
    assert found.level is Severity.OK
    assert found.numbers["recorded"] == found.numbers["acceptance_length"] == short.length(4)


def test_damaged_probe_is_no_record(healthy: Judged) -> None:
    probe = describe_probe(healthy, "native")
    broken: tuple[object, ...] = (None, [], {"code": "abc"}, {"code": 5.5})
    for damaged in broken:
        found = check_record(healthy, HeadRecord(probe={**probe, "stood": damaged}))
        assert found.level is Severity.SKIPPED


def test_record_of_other_prompts_does_not_count(healthy: Judged) -> None:
    probe = describe_probe(healthy, "native") | {"prompts": "others"}
    assert probe["prompts"] != PROMPTS_ID
    assert check_record(healthy, HeadRecord(probe=probe)).level is Severity.SKIPPED


def test_numbers_of_training_are_a_looser_measure(healthy: Judged) -> None:
    now = healthy.acceptance.length(4)
    for share, level in ((0.8, Severity.OK), (0.2, Severity.FAULT)):
        recorded = 1 + (now - 1) / share
        by_task = {"temperature_0": {"code": [1.5, 1.8, 1.9, recorded, 9.0]}}
        found = check_record(healthy, HeadRecord(acceptance=by_task))
        assert found.level is level
        assert found.numbers["recorded"] == pytest.approx(recorded)
