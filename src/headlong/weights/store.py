"""The models on this machine: one readable folder each, in the user's cache.

    <cache>/models/<name>/<file>         the model file, placed whole or not at all
    <cache>/models/<name>/source.json    where it came from, sha256, size, date, licence
    <cache>/locks/<name>.lock            held while a model is pulled

In:  finished files and what is known about them.
Out: `StoredModel` records, free-space and permission refusals, a lock against two pulls at once.
Knows nothing of networks. Files of the Hugging Face hub stay in the hub's own cache; the record
here points at them.
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from headlong.errors import DiskFullError, SourceError
from headlong.weights.partial_file import write_atomically
from headlong.weights.progress import Progress

CACHE_VARIABLE = "HEADLONG_CACHE"
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model, as it was when it was pulled."""

    path: Path
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine and where it came from."""

    name: str
    """What a user types to get it."""
    path: Path
    """The GGUF file, or the folder with config.json."""
    files: tuple[StoredFile, ...]
    source: str
    licence: str
    uploader: str
    revision: str
    """The hub's commit, or the version of the wheel."""
    pulled_at: str
    """ISO date and time, UTC."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.num_bytes for file in self.files)

    @property
    def sha256(self) -> str | None:
        """The file's hash; None for a folder, whose files have one each."""
        return self.files[0].sha256 if self.path.is_file() and len(self.files) == 1 else None

    def find_damage(self, *, rehash: bool = False) -> str | None:
        """Say what is wrong with the files, or None: sizes always, contents when `rehash`."""
        for file in self.files:
            if not file.path.is_file():
                return f"{file.path} is gone"
            size = file.path.stat().st_size
            if size != file.num_bytes:
                return f"{file.path} has {size:,} bytes instead of {file.num_bytes:,}"
            if rehash and (found := hash_file(file.path)) != file.sha256:
                return f"{file.path} has sha256 {found} instead of {file.sha256}"
        return None


class Store:
    """The cache folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_dir()

    def folder_of(self, name: str) -> Path:
        """Return the folder of a model; nothing is made."""
        return self.root / "models" / _folder_name(name)

    def make_folder(self, name: str) -> Path:
        """Return the folder of a model, made if need be."""
        folder = self.folder_of(name)
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def find(self, name: str) -> StoredModel | None:
        """Return what was recorded about a model, or None; its files are not checked."""
        model = _read_record(self.folder_of(name) / "source.json")
        return model if model and model.name == name else None

    def list(self) -> list[StoredModel]:
        """Return all recorded models, by name."""
        records = sorted((self.root / "models").glob("*/source.json"))
        return [model for path in records if (model := _read_record(path))]

    def record(self, model: StoredModel) -> None:
        """Write down that a model is here."""
        folder = self.make_folder(model.name)
        document = asdict(model) | {
            "path": _relative(model.path, folder),
            "files": [
                {"path": _relative(one.path, folder), "bytes": one.num_bytes, "sha256": one.sha256}
                for one in model.files
            ],
        }
        with storage_errors(folder):
            write_atomically(folder / "source.json", json.dumps(document, indent=2) + "\n")

    @contextmanager
    def lock(self, name: str, progress: Progress) -> Iterator[None]:
        """Hold a model's lock, waiting for another pull of the same model to end."""
        path = self.root / "locks" / f"{_folder_name(name)}.lock"
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                progress.note(f"another headlong is pulling {name}; waiting for it to finish")
                lock.acquire()
        try:
            yield
        finally:
            # A pull that brought nothing leaves nothing; a folder with something in it stays.
            with suppress(OSError):
                self.folder_of(name).rmdir()
            lock.release()


def cache_dir() -> Path:
    """Return the cache folder: HEADLONG_CACHE, else the system's place for user caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("headlong", appauthor=False)


def hash_file(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """Return the present moment as records spell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def require_space(folder: Path, needed_bytes: int, variable: str = CACHE_VARIABLE) -> None:
    """Refuse when `folder`, which `variable` moves elsewhere, has less than `needed_bytes` left."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise DiskFullError(
            f"{needed_bytes / 1e6:,.0f} MB are needed in {folder}, "
            f"but only {free_bytes / 1e6:,.0f} MB are free there.",
            f"Free some space, or point {variable} at a folder on a larger disk.",
        )


@contextmanager
def storage_errors(folder: Path, variable: str = CACHE_VARIABLE) -> Iterator[None]:
    """Turn what the system says about writing into `folder` into refusals with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free_mb = shutil.disk_usage(folder).free / 1e6
            raise DiskFullError(
                f"The disk of {folder} is full ({free_mb:,.0f} MB free): {error.strerror}.",
                f"Free some space and run the same command again, or point {variable} "
                "at a folder on a larger disk.",
            ) from error
        if error.errno in _UNUSABLE:
            raise SourceError(
                f"The model cache cannot be used: {error.filename or folder}: {error.strerror}.",
                f"Point {variable} at a folder you may write to.",
            ) from error
        raise


def _folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._@=-]+", "--", name)


def _relative(path: Path, folder: Path) -> str:
    # Relative inside the folder, so that the cache can be moved as a whole.
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _read_record(path: Path) -> StoredModel | None:
    """Read a source.json; None when it is absent or unreadable, as after a power cut."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        files = tuple(
            StoredFile(path.parent / file["path"], file["bytes"], file["sha256"])
            for file in document["files"]
        )
        return StoredModel(**document | {"path": path.parent / document["path"], "files": files})
    except (OSError, ValueError, KeyError, TypeError):
        return None
