"""The user's state folder: conversations that were kept, what was typed, which servers run.

In:  the environment.
Out: where files lie; files that only their user can read. HEADLONG_STATE names another folder.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from headlong.errors import HeadlongError
from headlong.weights.partial_file import write_atomically

STATE_VARIABLE = "HEADLONG_STATE"


def state_dir() -> Path:
    """Return the state folder; nothing is made."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_state_path("headlong", appauthor=False)


def make_private_folder(folder: Path) -> Path:
    """Make a folder that only its user can look into."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def write_private(path: Path, text: str) -> None:
    """Replace a file of the state folder, whole or not at all."""
    with state_errors(path):
        make_private_folder(path.parent)
        write_atomically(path, text)


@contextmanager
def state_errors(path: Path) -> Iterator[None]:
    """Turn what the system says about a file of the state folder into a refusal."""
    try:
        yield
    except OSError as error:
        raise HeadlongError(
            f"{error.filename or path} cannot be used: {error.strerror}.",
            f"Point {STATE_VARIABLE} at a folder you may write to.",
        ) from error
