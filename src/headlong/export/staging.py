"""A folder that is there as a whole or not at all.

In:  where it shall be. Out: a folder beside it to write into, renamed when all went well.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headlong.errors import DiskFullError, SourceError


def refuse_existing(out: Path) -> None:
    """Refuse a place where something is already."""
    try:
        is_empty_folder = out.is_dir() and not any(out.iterdir())
        is_current = is_empty_folder and out.samefile(Path.cwd())
    except OSError as error:
        raise _refusal(out, error) from error
    if is_current:
        raise SourceError(f"{out} is the current folder.", "Name one in it, which is then made.")
    if os.path.lexists(out) and not is_empty_folder:
        raise SourceError(
            f"{out} is there already.", "Name a place where nothing is yet, or remove that."
        )


@contextmanager
def staged(out: Path, needed_bytes: int, *, is_folder: bool = True) -> Iterator[Path]:
    """Hand out a folder to write into, or a file to make; it becomes `out` if the block ends."""
    part = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        _require_space(part.parent, needed_bytes)
        if is_folder:
            part.mkdir()
        yield part
        os.replace(part, out)
    except OSError as error:
        raise _refusal(out, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):  # it is gone, or could never be
            part.unlink()


def _refusal(out: Path, error: OSError) -> SourceError:
    kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else SourceError
    return kind(
        f"The export cannot be written to {out}: {error.strerror or error}.",
        "Check room and rights there, or name another folder; nothing was left behind.",
    )


def _require_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise DiskFullError(
            f"{needed_bytes / 1e6:,.0f} MB are needed in {folder}, but only {free / 1e6:,.0f} MB "
            "are free there.",
            "Free some space, or name another folder.",
        )
