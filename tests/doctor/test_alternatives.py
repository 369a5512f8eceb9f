"""Heads that are read the wrong way round, in the shipped head and in fitted ones."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from faulty_heads import Arrays, copy_shipped
from fitted_heads import fit_head
from headlong.doctor.alternatives import list_alternatives, taps_needed
from headlong.doctor.draft_checks import check_reading
from headlong.doctor.finding import Finding, Level
from headlong.doctor.patient import Patient
from headlong.doctor.probe import Heard
from headlong.doctor.records import read_record
from headlong.heads.head_files import build_head
from headlong.heads.head_weights import HeadWeights, store_arrays
from headlong.heads.nextn_families import NextnSwitches
from headlong.models.transformer import Backbone
from headlong.ops.op_set import Norm
from patients import hear_answers, judge, parts, with_head
from random_heads import random_medusa, random_nextn

HIDDEN = 576
SPREAD = 1.2
"""How widely norm weights differ, so that a norm left out or put in matters."""


def read(patient: Patient, heard: list[Heard]) -> Finding:
    """Look for a better reading of a patient's head."""
    assert patient.head is not None
    others = list(list_alternatives(patient.head, patient.weights, parts(patient)[0]))
    return check_reading(judge(patient.head, heard), others)


def test_shipped_head_is_read_rightly(default_patient: Patient, default_heard: list[Heard]) -> None:
    assert read(default_patient, default_heard).level is Level.OK
    assert default_patient.head is not None
    assert default_patient.head_folder is not None
    others = list_alternatives(
        default_patient.head, default_patient.weights, parts(default_patient)[0]
    )
    judged = judge(default_patient.head, default_heard)
    record = read_record(default_patient.head_folder)
    assert check_reading(judged, list(others), record).level is Level.OK


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
    default_patient: Patient,
    default_heard: list[Heard],
    tmp_path: Path,
) -> None:
    patient = with_head(default_patient, copy_shipped(tmp_path / "head", plant))
    found = read(patient, default_heard)
    assert found.level is Level.FAULT
    assert words in found.seen
    assert found.remedy


def exchange_norms(arrays: Arrays) -> None:
    one, other = "midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight"
    arrays[one], arrays[other] = arrays[other], arrays[one]


@pytest.mark.parametrize(
    ("plant", "taps", "words"),
    [
        (exchange_norms, [2, 15, 27], "With its two input norms exchanged"),
        (None, [3, 16, 28], "With taps one layer earlier (2, 15, 27)"),
    ],
)
def test_mistake_that_costs_few_drafts_is_known_by_the_record(
    plant: Callable[[Arrays], None] | None,
    taps: list[int],
    words: str,
    default_patient: Patient,
    tmp_path: Path,
) -> None:
    """A head may draft nearly as well so: where drafts stand gives it away."""
    folder = copy_shipped(tmp_path / "head", plant)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"eagle_aux_hidden_state_layer_ids": taps})
    )
    patient = with_head(default_patient, folder)
    assert patient.head is not None
    backbone, _ = parts(patient)
    heard = hear_answers(patient, taps_needed(patient.head, backbone.config.num_layers), 3)
    others = list(list_alternatives(patient.head, patient.weights, backbone))
    judged = judge(patient.head, heard)
    found = check_reading(judged, others, read_record(folder))
    assert found.level is Level.FAULT, found
    assert words in found.seen


@pytest.fixture(scope="module")
def uneven(tiny_patient: Patient) -> Patient:
    """A tiny model whose final norm matters."""
    backbone, _ = parts(tiny_patient)
    weight = np.random.default_rng(5).lognormal(0, SPREAD, backbone.config.hidden_size)
    norm = Norm(weight.astype(np.float32), backbone.final_norm.eps)
    assert tiny_patient.loaded is not None
    loaded = replace(tiny_patient.loaded, backbone=replace(backbone, final_norm=norm))
    return replace(tiny_patient, loaded=loaded)


@pytest.fixture(scope="module")
def uneven_heard(uneven: Patient) -> list[Heard]:
    """What it says."""
    return hear_answers(uneven, (), 3)


@pytest.fixture(scope="module")
def fitted(uneven: Patient, uneven_heard: list[Heard]) -> HeadWeights:
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
    wrong: dict[str, str], fitted: HeadWeights, backbone: Backbone, heard: list[Heard]
) -> Finding:
    """Load a head with some switches the wrong way round and look for a better reading."""
    config = {**fitted.config, "nextn": {**fitted.config["nextn"], **wrong}}
    head = build_head(replace(fitted, config=config), backbone)
    others = list(list_alternatives(head, None, backbone))
    return check_reading(judge(head, heard), others)


def test_right_switches_are_left_alone(
    fitted: HeadWeights, uneven: Patient, uneven_heard: list[Heard]
) -> None:
    assert read_with({}, fitted, parts(uneven)[0], uneven_heard).level is Level.OK


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
    uneven: Patient,
    uneven_heard: list[Heard],
) -> None:
    found = read_with({switch: wrong}, fitted, parts(uneven)[0], uneven_heard)
    assert found.level is Level.FAULT, found.numbers
    assert f"Set {switch} to {right!r}" in found.remedy


def test_medusa_heads_have_another_reading(tiny_patient: Patient) -> None:
    backbone, _ = parts(tiny_patient)
    head = build_head(random_medusa(backbone.config), backbone)
    (other,) = list_alternatives(head, None, backbone)
    (heard,) = hear_answers(tiny_patient, taps_needed(head, backbone.config.num_layers), 1)
    assert other.hear(heard).hidden.normed is heard.hidden.raw
