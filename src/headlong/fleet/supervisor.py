"""The supervisor: runs one program, and leaves nothing of it behind.

In:  seconds and a command as arguments; standard input, which nobody writes to and which ends with
     whoever started the supervisor, however that came about.
Out: the program's exit status. When standard input ends, or at SIGTERM and SIGINT, the program
     gets SIGTERM and so many seconds; then it and all processes it has begun are killed.
A program of its own, with the standard library alone: it must outlive a parent that crashes, and
cost next to nothing while it waits.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36
"""Of Linux' prctl: PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER."""

_LOOK_S = 0.05


def main(grace_s: float, command: list[str]) -> int:
    """Run a command until it ends or has to, within `grace_s` then."""
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    _prctl(_ADOPT_ORPHANS, 1)
    try:
        # In a single thread, so it is safe to run code between fork and exec.
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}.", file=sys.stderr)  # noqa: T201  # its log
        return 127
    while child.poll() is None and not _has_to_end(woken):
        pass
    status = _end(child, grace_s)
    _kill_orphans()
    return status if status >= 0 else 128 - status


def _has_to_end(woken: int) -> bool:
    """Sleep until something happens; tell whether the program has to end."""
    ready, _, _ = select.select([0, woken], [], [])
    if 0 in ready and not os.read(0, 1):
        return True
    numbers = os.read(woken, 64) if woken in ready else b""
    return signal.SIGTERM in numbers or signal.SIGINT in numbers


def _end(child: subprocess.Popen[bytes], grace_s: float) -> int:
    """End the program's process group; return its exit status."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while child.poll() is None and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _kill_orphans() -> None:
    """Kill what left the group: on Linux, orphans below the supervisor become its own children."""
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    while own.exists() and (pids := own.read_text().split()):
        for pid in map(int, pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _die_with_parent() -> None:
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
