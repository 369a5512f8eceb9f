"""Files under the readers: what cannot be read is refused, what is JSON is parsed in bounds."""

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from headlong.errors import CheckpointError
from headlong.weights.mapped_file import map_file, read_json_object, release_pages, shown
from headlong.weights.tensors import StoredTensor


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


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="this system does not tell")
def test_pages_let_go_leave_memory_and_come_back(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 2**22, dtype=np.uint8)
    path = tmp_path / "weights"
    path.write_bytes(content.tobytes())
    data = map_file(path)
    part = data[100:][: 2**22 - 5000].reshape(4, -1)[1:]
    assert data.tobytes() == content.tobytes()
    held = resident_bytes(path)
    release_pages(part)
    assert resident_bytes(path) <= held - part.nbytes + 2**14
    assert data.tobytes() == content.tobytes()
    release_pages(part.copy())  # not a file's bytes: nothing happens


def test_blocks_leave_nothing_of_the_file_behind(tmp_path: Path) -> None:
    """A page that is read brings those around it back, the block before among them."""
    path = tmp_path / "weights"
    with path.open("wb", buffering=0) as file:  # pages are kept as large as they were written
        for _ in range(32):
            file.write(bytes(2**20))
    rows = map_file(path)[1000:][: 864 * 38_000].reshape(-1, 864)
    tensor = StoredTensor("test.weight", rows.shape, GGMLQuantizationType.I8, rows)
    for block in tensor.row_blocks(682 * 864):
        assert not block.data.any()
    assert resident_bytes(path) < 2**22


def resident_bytes(path: Path) -> int:
    """Return how much of a mapped file this process has in memory."""
    entry = Path("/proc/self/smaps").read_text().split(str(path))[1]
    return int(entry.split("Rss:")[1].split()[0]) * 1024
