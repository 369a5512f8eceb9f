"""Files under the readers: what cannot be read is refused, what is JSON is parsed in bounds."""

import os
from pathlib import Path

import pytest

from headlong.errors import CheckpointError
from headlong.weights.mapped_file import map_file, read_json_object, shown


def test_mapped_bytes_are_the_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\0\1\2")
    data = map_file(tmp_path / "f")
    assert data.tolist() == [0, 1, 2]
    assert not data.flags.writeable


@pytest.mark.parametrize("name", ["absent", "x" * 5000, "nul\0"])
def test_unusable_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError):
        map_file(tmp_path / name)


def test_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a regular file"):
        map_file(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        map_file(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "not an object"),
        (b"null", "not an object"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": "' + b"x" * 200_000 + b'"}', "at most 150000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_bad_json_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_json_object(tmp_path / "f.json", max_bytes=150_000)
    assert words in caught.value.problem
    assert str(tmp_path / "f.json") in caught.value.problem
    assert caught.value.remedy


def test_shown_values_are_short_and_printable() -> None:
    assert shown("blk.0") == "'blk.0'"
    assert shown("\ud800\n").isprintable()
    assert len(shown("x" * 10**6)) <= 80
    assert len(shown(list(range(10**6)))) <= 80
