import json
from pathlib import Path

import pytest

from headlong.doctor.head_checks import HeadRecord, expected_length, read_record, write_probe
from headlong.errors import HeadError


def test_head_without_a_record_has_an_empty_one(tmp_path: Path) -> None:
    assert read_record(tmp_path) == HeadRecord()


def test_what_is_written_is_read_back_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"recipe": {"seed": 1}, "backbone_fingerprint": "old"}')
    write_probe(tmp_path, "new", {"acceptance_length": 2.5})
    assert json.loads((tmp_path / "run.json").read_text())["recipe"] == {"seed": 1}
    record = read_record(tmp_path)
    assert record.probe == {"acceptance_length": 2.5}
    # What training wrote down about the backbone is not overwritten by a later measurement.
    assert record.fingerprint == "old"


def test_new_record_names_the_backbone(tmp_path: Path) -> None:
    path = write_probe(tmp_path, "abc", {"x": 1})
    assert path == tmp_path / "run.json"
    assert read_record(tmp_path).fingerprint == "abc"


def test_record_of_a_single_file_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "head.safetensors").touch()
    write_probe(tmp_path / "head.safetensors", "abc", {})
    assert read_record(tmp_path).fingerprint == "abc"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}'])
def test_damaged_record_says_so_and_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert read_record(tmp_path).problem
    with pytest.raises(HeadError, match=r"run\.json"):
        write_probe(tmp_path, "abc", {})
    assert (tmp_path / "run.json").read_text() == text


def test_wrong_kinds_of_values_are_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"backbone_fingerprint": 7, "probe": [], "acceptance": 1}')
    assert read_record(tmp_path) == HeadRecord()


def test_expected_length_is_the_mean_over_tasks() -> None:
    acceptance = {"temperature_0": {"code": [1.5, 2.0, 3.0], "story": [1.2, 1.4, 2.0]}}
    assert expected_length(acceptance, 3) == 2.5
    assert expected_length(acceptance, 4) is None
    assert expected_length({"temperature_0": {"code": "x"}}, 1) is None
