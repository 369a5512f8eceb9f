"""Memory-mapped files, and JSON read with a size limit, for all readers.

In:  a path.
Out: the file's bytes as a read-only array that pages in on use and out on demand, or a JSON object.
Every failure becomes a `CheckpointError`. The bytes are interpreted by the readers.
"""

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from headlong.arrays import ByteArray
from headlong.errors import CheckpointError

DOWNLOAD_AGAIN = "The file is damaged or was cut short; download it again."

_LFS_POINTER = b"version https://git-lfs"
_SHOWN_CHARACTERS = 80

MAX_JSON_CONTAINERS = 2**18
"""Lists and objects cost far more time and memory than the bytes they are written in."""


def map_file(path: Path) -> ByteArray:
    """Map a file read-only, or say why that cannot be."""
    try:
        if not path.exists():
            raise CheckpointError(f"{path} does not exist.", "Check the spelling of the path.")
        if not path.is_file():  # opening a pipe or a device could block forever
            problem = f"{path} is not a regular file."
            raise CheckpointError(problem, "Give the path of a model file.")
        with path.open("rb") as file:
            if not file.read(1):
                raise CheckpointError(f"{path} is empty.", DOWNLOAD_AGAIN)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        remedy = "Check that you may read it and that the disk is in order."
        raise CheckpointError(f"{path} cannot be read: {error}.", remedy) from error
    if mapped[: len(_LFS_POINTER)] == _LFS_POINTER:
        raise CheckpointError(
            f"{path} is a Git LFS pointer: a few lines of text in place of the weights.",
            "Run `git lfs pull` in that folder, or download the file itself.",
        )
    return np.frombuffer(mapped, dtype=np.uint8)


def release_pages(data: ByteArray) -> None:
    """Release the pages of a part of a mapped file; a later access reads them again."""
    whole = data
    base: object = data.base
    while isinstance(base, np.ndarray):
        whole, base = base, base.base
    mapped = base.obj if isinstance(base, memoryview) else None
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED") or not data.nbytes:
        return  # a copy, or a system that decides for itself
    start = data.ctypes.data - whole.ctypes.data
    first_page = start // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first_page, start + data.nbytes - first_page)


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Read a JSON file that must hold an object."""
    data = map_file(path)
    if data.nbytes > max_bytes:
        problem = f"{path} is {data.nbytes} bytes long; at most {max_bytes} are expected of it."
        raise CheckpointError(problem, "Put the model's own file in its place.")
    return parse_json_object(data.tobytes(), path, "the file")


def parse_json_object(text: bytes, path: Path, part: str) -> dict[str, Any]:
    """Parse JSON that must be an object; `part` says in errors which part of the file it is."""
    if text.count(b"[") + text.count(b"{") > MAX_JSON_CONTAINERS:
        problem = f"{path}: {part} holds more than {MAX_JSON_CONTAINERS} lists and objects."
        raise CheckpointError(problem, DOWNLOAD_AGAIN)
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_refuse_duplicates)
    except RecursionError as error:  # thousands of nested brackets
        raise CheckpointError(f"{path}: {part} is nested too deeply.", DOWNLOAD_AGAIN) from error
    except ValueError as error:  # not UTF-8, not JSON, a duplicate key, or an absurdly long number
        problem = f"{path}: {part} is not valid JSON ({shown(str(error))})."
        raise CheckpointError(problem, DOWNLOAD_AGAIN) from error
    if not isinstance(value, dict):
        problem = f"{path}: {part} is JSON, but {shown(value)} is not an object."
        raise CheckpointError(problem, DOWNLOAD_AGAIN)
    return value


def shown(value: object) -> str:
    """Return a value from a file as it may appear in a message: printable and short."""
    # Cut before repr: the value may be a string of many megabytes.
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str | list) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:  # plain json.loads would keep the last one in silence
            raise ValueError(f"the key {shown(name)} occurs twice")
        fields[name] = value
    return fields
