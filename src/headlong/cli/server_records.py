"""Which servers run on this machine: a record and a log of each, in the user's state folder.

    <state>/servers/<pid>.json    what runs where
    <state>/servers/<pid>.lock    held while it runs, so that a record left by a crash is known
    <state>/servers/<port>.log    its log; stays until another server takes the port
    <state>/servers/<port>.engines/  the logs of engines that it has started

In:  a server that begins to serve. Out: the records of those that still do.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from headlong.cli.state import make_private_folder, state_dir, write_private


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server that runs."""

    pid: int
    url: str
    model: str
    started_at: str
    """ISO date and time, UTC."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return urlsplit(self.url).port or 0


def begin_log(url: str, log_to: Callable[[Path], None]) -> str | None:
    """Let a server that is starting log into its file; return why it cannot, None when it does."""
    try:
        make_private_folder(_folder())
        log_to(log_path(urlsplit(url).port or 0))
    except OSError as error:
        return f"`headlong ps` and `headlong logs` will not know this server: {error}"
    return None


@contextmanager
def listed(record: ServerRecord) -> Iterator[None]:
    """List a server among those that run, for as long as the block takes."""
    path = _folder() / f"{record.pid}.json"
    lock = FileLock(path.with_suffix(".lock"))
    with lock:
        write_private(path, json.dumps(asdict(record)) + "\n")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)


def running_servers() -> list[ServerRecord]:
    """Return the servers that run, the latest first; what crashed ones left is removed."""
    found = [record for path in _folder().glob("*.json") if (record := _read(path)) is not None]
    return sorted(found, key=lambda one: one.started_at, reverse=True)


def log_path(port: int) -> Path:
    """Return where the server of a port logs."""
    return _folder() / f"{port}.log"


def engine_logs(url: str) -> Path:
    """Return the folder in which the engines that a server has started log."""
    return _folder() / f"{urlsplit(url).port or 0}.engines"


def logged_ports() -> list[int]:
    """Return the ports whose servers have left a log, the latest first."""
    paths = [path for path in _folder().glob("*.log") if path.stem.isdecimal()]
    return [int(one.stem) for one in sorted(paths, key=lambda one: -one.stat().st_mtime)]


def _read(path: Path) -> ServerRecord | None:
    """Return a record, None when its server is gone."""
    lock = FileLock(path.with_suffix(".lock"))
    with suppress(Timeout), lock.acquire(timeout=0):
        # Nobody holds it: the server did not end, it was ended.
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        return None
    try:
        return ServerRecord(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):  # it ended a moment ago
        return None


def _folder() -> Path:
    return state_dir() / "servers"
