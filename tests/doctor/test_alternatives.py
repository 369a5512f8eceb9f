"""Heads that are read the wrong way round, in the shipped head and in fitted ones."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faulty_heads import Arrays, copy_shipped
from fitted_heads import fit_head
from headlong.doctor.alternatives import list_alternatives, taps_needed
from headlong.doctor.draft_checks import check_reading
from headlong.doctor.finding import Finding, Severity
from headlong.doctor.head_checks import read_record
from headlong.doctor.probe import ProbeRows
from headlong.doctor.subject import Subject
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadWeights, store_arrays
from headlong.heads.nextn_families import NextnSwitches
from headlong.models.transformer import Backbone
from headlong.ops.blocks import Norm
from random_heads import random_medusa, random_nextn
from subjects import judge, parts, probe_answers, with_head

HIDDEN = 576
SPREAD = 1.2
"""How widely norm weights differ, so that a norm left out or put in matters."""


def read(subject: Subject, probed: list[ProbeRows]) -> Finding:
    """Look for a better reading of a subject's head."""
    assert subject.head is not None
    others = list(list_alternatives(subject.head, subject.weights, parts(subject)[0]))
    return check_reading(judge(subject.head, probed), others)


def test_shipped_head_is_read_rightly(
    default_subject: Subject, default_heard: list[ProbeRows]
) -> None:
    assert read(default_subject, default_heard).level is Severity.OK
    assert default_subject.head is not None
    assert default_subject.head_folder is not None
    others = list_alternatives(
        default_subject.head, default_subject.weights, parts(default_subject)[0]
    )
    judged = judge(default_subject.head, default_heard)
    record = read_record(default_subject.head_folder)
    assert check_reading(judged, list(others), record).level is Severity.OK


def exchange_halves(arrays: Arrays) -> None:
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        arrays[name] = np.roll(arrays[name], HIDDEN, axis=1)


def reverse_taps(arrays: Arrays) -> None:
    thirds = np.split(arrays["fc.weight"], 3, axis=1)
    arrays["fc.weight"] = np.concatenate(thirds[::-1], axis=1)


def shuffle_vocabulary(arrays: Arrays) -> None:
    places = np.arange(len(arrays["d2t"]))
    arrays["d2t"] = np.random.default_rng(0).permutation(places + arrays["d2t"]) - places


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (exchange_halves, "the halves of q/k/v's input in the other order"),
        (reverse_taps, "the tapped states in the opposite order"),
        (shuffle_vocabulary, "its draft tokens in ascending order"),
    ],
)
def test_wrong_order_in_an_eagle3_head_is_named(
    plant: Callable[[Arrays], None],
    words: str,
    default_subject: Subject,
    default_heard: list[ProbeRows],
    tmp_path: Path,
) -> None:
    subject = with_head(default_subject, copy_shipped(tmp_path / "head", plant))
    found = read(subject, default_heard)
    assert found.level is Severity.FAULT
    assert words in found.seen
    assert found.remedy


TAPS = "eagle_aux_hidden_state_layer_ids"


def exchange_norms(arrays: Arrays) -> None:
    one, other = "midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight"
    arrays[one], arrays[other] = arrays[other], arrays[one]


@pytest.mark.parametrize(
    ("plant", "said", "words"),
    [
        (exchange_norms, {}, "With its two input norms exchanged"),
        (None, {TAPS: [3, 16, 28]}, "With taps one layer earlier (2, 15, 27)"),
        (None, {"norm_before_residual": True}, "With norm_before_residual off"),
    ],
)
def test_mistake_that_costs_few_drafts_is_known_by_the_record(
    plant: Callable[[Arrays], None] | None,
    said: dict[str, Any],
    words: str,
    default_subject: Subject,
    tmp_path: Path,
) -> None:
    """A head may draft nearly as well so: where drafts stand gives it away."""
    folder = copy_shipped(tmp_path / "head", plant)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {TAPS: [2, 15, 27]} | said))
    subject = with_head(default_subject, folder)
    assert subject.head is not None
    backbone, _ = parts(subject)
    probed = probe_answers(subject, taps_needed(subject.head, backbone.config.num_layers), 3)
    others = list(list_alternatives(subject.head, subject.weights, backbone))
    judged = judge(subject.head, probed)
    found = check_reading(judged, others, read_record(folder))
    assert found.level is Severity.FAULT, found
    assert words in found.seen


@pytest.fixture(scope="module")
def uneven(tiny_subject: Subject) -> Subject:
    """A tiny model whose final norm matters."""
    backbone, _ = parts(tiny_subject)
    weight = np.random.default_rng(5).lognormal(0, SPREAD, backbone.config.hidden_size)
    norm = Norm(weight.astype(np.float32), backbone.final_norm.eps)
    assert tiny_subject.loaded is not None
    loaded = replace(tiny_subject.loaded, backbone=replace(backbone, final_norm=norm))
    return replace(tiny_subject, loaded=loaded)


@pytest.fixture(scope="module")
def uneven_heard(uneven: Subject) -> list[ProbeRows]:
    """What it says."""
    return probe_answers(uneven, (), 3)


@pytest.fixture(scope="module")
def fitted(uneven: Subject, uneven_heard: list[ProbeRows]) -> HeadWeights:
    """A nextn head that drafts well, with every switch other than usual."""
    backbone, _ = parts(uneven)
    switches = NextnSwitches("hidden_first", "raw", "raw", "one_plus")
    weights = random_nextn(backbone.config, switches=switches)
    # The head's own norm must matter as well, or what is carried would not.
    rng, size = np.random.default_rng(6), backbone.config.hidden_size
    own = rng.lognormal(0, SPREAD, size) * rng.choice([-1, 1], size) - 1
    tensors = store_arrays({"norm.weight": own.astype(np.float32)}, "float32")
    weights = replace(weights, tensors={**weights.tensors, **tensors})
    return fit_head(weights, backbone, uneven_heard)


def read_with(
    wrong: dict[str, str], fitted: HeadWeights, backbone: Backbone, probed: list[ProbeRows]
) -> Finding:
    """Load a head with some switches the wrong way round and look for a better reading."""
    config = {**fitted.config, "nextn": {**fitted.config["nextn"], **wrong}}
    head = build_head(replace(fitted, config=config), backbone)
    others = list(list_alternatives(head, None, backbone))
    return check_reading(judge(head, probed), others)


def test_right_switches_are_left_alone(
    fitted: HeadWeights, uneven: Subject, uneven_heard: list[ProbeRows]
) -> None:
    assert read_with({}, fitted, parts(uneven)[0], uneven_heard).level is Severity.OK


@pytest.mark.parametrize(
    ("switch", "wrong", "right"),
    [
        ("concat", "embedding_first", "hidden_first"),
        ("trunk", "normed", "raw"),
        ("carried", "normed", "raw"),
        ("norm", "plain", "one_plus"),
    ],
)
def test_wrong_switch_is_named_with_its_right_value(
    switch: str,
    wrong: str,
    right: str,
    fitted: HeadWeights,
    uneven: Subject,
    uneven_heard: list[ProbeRows],
) -> None:
    found = read_with({switch: wrong}, fitted, parts(uneven)[0], uneven_heard)
    assert found.level is Severity.FAULT, found.numbers
    assert f"Set {switch} to {right!r}" in found.remedy


def test_medusa_heads_have_another_reading(tiny_subject: Subject) -> None:
    backbone, _ = parts(tiny_subject)
    head = build_head(random_medusa(backbone.config), backbone)
    (other,) = list_alternatives(head, None, backbone)
    (probed,) = probe_answers(tiny_subject, taps_needed(head, backbone.config.num_layers), 1)
    assert other.read(probed).hidden.normed is probed.hidden.raw
