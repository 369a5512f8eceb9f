"""A file that grows piece by piece and survives an interruption.

In:  the pieces' names in order, then each piece's bytes.
Out: the whole file at its final place, by one atomic rename, with its sha256.
Finished pieces are noted in a small JSON file beside it, so that a later pull goes on after them.
Knows nothing of where the bytes come from.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _FinishedPiece:
    name: str
    end: int
    """Where the next piece starts in the file."""
    transfer_bytes: int
    """Bytes transferred for this piece; a wheel is a little smaller than what it carries."""


class PartialFile:
    """The not yet finished version of `target`, made of named pieces."""

    def __init__(self, target: Path, piece_names: Sequence[str]) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".partial")
        self._notes_path = target.with_name(target.name + ".partial.json")
        self._piece_names = list(piece_names)
        self._finished = self._read_notes()
        self._digest = hashlib.sha256()
        if self.num_bytes:
            with self.path.open("rb") as file:
                self._digest.update(mmap(file.fileno(), self.num_bytes, access=ACCESS_READ))

    @property
    def num_finished(self) -> int:
        """Pieces that are in the file for good."""
        return len(self._finished)

    @property
    def num_bytes(self) -> int:
        """Bytes of the finished pieces."""
        return self._finished[-1].end if self._finished else 0

    @property
    def transfer_bytes(self) -> int:
        """Bytes transferred for the finished pieces."""
        return sum(piece.transfer_bytes for piece in self._finished)

    @property
    def sha256(self) -> str:
        """Hash of the finished pieces, in order."""
        return self._digest.hexdigest()

    def append(self, chunks: Iterable[bytes], transfer_bytes: int) -> None:
        """Add the next piece; after an error the file is as it was before."""
        digest = self._digest.copy()
        self.path.touch()
        try:
            end = self._write(chunks, digest)
        except BaseException:
            # A partial piece is useless and would only fill the disk.
            os.truncate(self.path, self.num_bytes)
            raise
        name = self._piece_names[self.num_finished]
        self._finished.append(_FinishedPiece(name, end, transfer_bytes))
        self._digest = digest
        notes = {"finished": [asdict(piece) for piece in self._finished]}
        write_atomically(self._notes_path, json.dumps(notes, indent=1) + "\n")

    def _write(self, chunks: Iterable[bytes], digest: "hashlib._Hash") -> int:
        """Write after the finished pieces, through to the disk; return where the file ends now."""
        with self.path.open("r+b") as file:
            file.seek(self.num_bytes)
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def place(self) -> None:
        """Move the finished file to `target` in one step."""
        assert self.num_finished == len(self._piece_names), "place() before the last piece"
        os.replace(self.path, self.target)
        sync_folder(self.target.parent)
        self._notes_path.unlink()

    def discard(self) -> None:
        """Remove everything gathered so far."""
        self.path.unlink(missing_ok=True)
        self._notes_path.unlink(missing_ok=True)
        self._finished.clear()
        self._digest = hashlib.sha256()

    def _read_notes(self) -> list[_FinishedPiece]:
        """Return the pieces that can be kept; none when notes and file do not fit each other."""
        try:
            notes = json.loads(self._notes_path.read_bytes())
            finished = [_FinishedPiece(**piece) for piece in notes["finished"]]
            size = self.path.stat().st_size
            names = [piece.name for piece in finished]
            is_whole = not finished or size >= finished[-1].end
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []
        return finished if is_whole and names == self._piece_names[: len(names)] else []


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at `path` by `text`: afterwards it is the old one or the new one, whole."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` survive a power cut, where the system can do that."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
