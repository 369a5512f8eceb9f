import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headlong.weights.partial_file import PartialFile, write_atomically

PIECES = ["one", "two", "three"]


def test_pieces_join_in_order_with_their_hash(tmp_path: Path) -> None:
    partial = PartialFile(tmp_path / "file", PIECES)
    for piece in (b"aa", b"bbb", b"c"):
        partial.append([piece[:1], piece[1:]], transfer_bytes=10)
    assert not (tmp_path / "file").exists()
    assert partial.sha256 == hashlib.sha256(b"aabbbc").hexdigest()
    partial.place()
    assert (tmp_path / "file").read_bytes() == b"aabbbc"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_finished_pieces_survive_an_interruption(tmp_path: Path) -> None:
    PartialFile(tmp_path / "file", PIECES).append([b"aa"], transfer_bytes=7)
    again = PartialFile(tmp_path / "file", PIECES)
    assert (again.num_finished, again.num_bytes, again.transfer_bytes) == (1, 2, 7)
    again.append([b"b"], 1)
    again.append([b"c"], 1)
    assert again.sha256 == hashlib.sha256(b"aabc").hexdigest()


def test_half_a_piece_is_cut_off(tmp_path: Path) -> None:
    def breaks_off() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise KeyboardInterrupt

    partial = PartialFile(tmp_path / "file", PIECES)
    partial.append([b"aa"], 1)
    with pytest.raises(KeyboardInterrupt):
        partial.append(breaks_off(), 1)
    assert partial.path.read_bytes() == b"aa"
    partial.append([b"b"], 1)
    assert partial.sha256 == hashlib.sha256(b"aab").hexdigest()


def test_bytes_after_the_last_finished_piece_are_overwritten(tmp_path: Path) -> None:
    """A power cut while a piece is written leaves a tail that no note vouches for."""
    partial = PartialFile(tmp_path / "file", ["one", "two"])
    partial.append([b"aa"], 1)
    partial.path.write_bytes(b"aaGARBAGE")
    again = PartialFile(tmp_path / "file", ["one", "two"])
    again.append([b"b"], 1)
    again.place()
    assert (tmp_path / "file").read_bytes() == b"aab"


@pytest.mark.parametrize(
    "notes", ["", "[]", '{"finished": 3}', '{"finished": [{"name": "one", "end": 99}]}']
)
def test_unusable_notes_start_over(tmp_path: Path, notes: str) -> None:
    partial = PartialFile(tmp_path / "file", PIECES)
    partial.append([b"aa"], 1)
    (tmp_path / "file.partial.json").write_text(notes)
    assert PartialFile(tmp_path / "file", PIECES).num_finished == 0


def test_pieces_of_another_version_start_over(tmp_path: Path) -> None:
    PartialFile(tmp_path / "file", PIECES).append([b"aa"], 1)
    assert PartialFile(tmp_path / "file", ["other", "two", "three"]).num_finished == 0


def test_file_shorter_than_its_notes_starts_over(tmp_path: Path) -> None:
    partial = PartialFile(tmp_path / "file", PIECES)
    partial.append([b"aa"], 1)
    partial.path.write_bytes(b"a")
    assert PartialFile(tmp_path / "file", PIECES).num_finished == 0


def test_text_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    write_atomically(path, json.dumps(1))
    write_atomically(path, json.dumps(2))
    assert path.read_text() == "2"
    assert list(tmp_path.iterdir()) == [path]
