"""Children: engines that this process has started, kept running, and takes with it when it ends.

In:  how to start each. Out: inside a `with` block, engines that answer at their addresses.
Each runs below a supervisor, which ends it however this process ends. One that dies at its start is
told with its last words; one that dies later is started again, ever later, and in the end given up.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Self

import httpx

from headlong.errors import EngineDownError
from headlong.fleet import supervisor

GRACE_S = 10.0
"""What an engine may take to end in good order."""

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0

MAX_DEATHS = 5
"""In a row; then an engine is given up."""

STEADY_S = 60.0
"""After so long, an engine counts as sound again; after so long a silence, as hung."""

_LOOK_S = 0.1
_ASK_S = 2.0
_TELL_S = 10.0
_LAST_LINES = 12
_LAST_BYTES = 16 << 10

_REMEDIES = (
    ("No module named", "Install it, and name its interpreter with --engine-command."),
    ("cannot be started", "Name the program with --engine-command."),
    ("out of memory", "Give each engine less, or start fewer: --engine-args, --replicas."),
    ("unrecognized arguments", "Look at --engine-args and --speculative-args."),
)
"""What to do about last words that are known."""

_log = logging.getLogger("headlong.fleet")


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """How one engine is started."""

    name: str
    command: Sequence[str]
    url: str
    health_path: str
    log_path: Path
    """Where what it writes is kept."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(slots=True, eq=False)
class _Child:
    """One engine and what became of it."""

    plan: ChildPlan
    process: subprocess.Popen[bytes] | None = None
    """The supervisor of the running one; None while there is none."""
    is_ready: bool = False
    num_deaths: int = 0
    begun_s: float = 0.0
    well_s: float = 0.0
    """When it was last seen well."""
    start_s: float = 0.0
    """When it may be started again."""


class Children:
    """Starts engines, watches them, and ends them."""

    def __init__(self, plans: Sequence[ChildPlan], start_s: float = 600.0) -> None:
        """Start nothing yet; engines may then take `start_s` to their first answer."""
        self._children = [_Child(plan) for plan in plans]
        self._start_s = start_s
        self._ending = threading.Event()
        self._http = httpx.Client(timeout=_ASK_S, trust_env=False)
        self._thread = threading.Thread(target=self._watch, name="headlong-children", daemon=True)

    def __enter__(self) -> Self:
        """Start all engines and wait until each answers.

        Raises:
            EngineDownError: One died, or took too long.
        """
        try:
            for child in self._children:
                _start(child, log_mode="wb")
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        running = [child for child in self._children if child.process is not None]
        for child in running:  # all at once: each may take its time
            _let_go(child)
        for child in running:
            _wait_for_end(child)
        self._http.close()

    def _wait_until_ready(self) -> None:
        began_s = told_s = time.monotonic()
        while waiting := [child for child in self._children if not child.is_ready]:
            for child in waiting:
                status = _exit_status(child)
                if status is not None:
                    raise _died_at_start(child, status)
                child.is_ready = self._answers(child)
            now_s = time.monotonic()
            if now_s - began_s > self._start_s:
                raise _too_slow(waiting[0], self._start_s)
            if now_s - told_s > _TELL_S:
                told_s = now_s
                _tell_progress(waiting, len(self._children), now_s - began_s)
            time.sleep(_LOOK_S)
        seconds = time.monotonic() - began_s
        _log.info("All %d engines are up after %.0f s.", len(self._children), seconds)

    def _watch(self) -> None:
        """Start engines again that have died or hang, until the end."""
        while not self._ending.wait(_LOOK_S):
            for child in self._children:
                self._look_after(child)

    def _look_after(self, child: _Child) -> None:
        now_s, status = time.monotonic(), _exit_status(child)
        if child.process is None:
            if child.num_deaths <= MAX_DEATHS and now_s >= child.start_s:
                _start_again(child)
        elif status is not None:
            _bury(child, f"ended with status {status}")
        elif now_s - child.well_s > _ASK_S:
            if self._answers(child):
                child.is_ready, child.well_s = True, now_s
                child.num_deaths = 0 if now_s - child.begun_s > STEADY_S else child.num_deaths
            elif now_s - child.well_s > (STEADY_S if child.is_ready else self._start_s):
                _let_go(child)
                _wait_for_end(child)
                _bury(child, f"has not answered for {now_s - child.well_s:.0f} s")

    def _answers(self, child: _Child) -> bool:
        try:
            answer = self._http.get(f"{child.plan.url}{child.plan.health_path}")
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK


def _start(child: _Child, log_mode: Literal["wb", "ab"]) -> None:
    """Start an engine.

    Raises:
        EngineDownError: The system did not let it.
    """
    plan = child.plan
    command = [sys.executable, "-I", supervisor.__file__, str(GRACE_S), *plan.command]
    try:
        plan.log_path.parent.mkdir(parents=True, exist_ok=True)
        with plan.log_path.open(log_mode) as log:
            child.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(plan.environ),
                start_new_session=True,  # Ctrl-C is for the server, which lets requests end first
            )
    except OSError as error:
        problem = f"The engine {plan.name} cannot be started: {error.strerror or error}."
        raise EngineDownError(problem, f"Its log would be {plan.log_path}.") from error
    child.is_ready = False
    child.begun_s = child.well_s = time.monotonic()
    _log.info("Started the engine %s at %s; its log is %s.", plan.name, plan.url, plan.log_path)


def _start_again(child: _Child) -> None:
    try:
        _start(child, log_mode="ab")
    except EngineDownError as error:
        _bury(child, f"cannot be started ({error.__cause__})")


def _exit_status(child: _Child) -> int | None:
    return None if child.process is None else child.process.poll()


def _let_go(child: _Child) -> None:
    """Let the supervisor end the engine."""
    assert child.process is not None
    stdin: IO[bytes] | None = child.process.stdin
    if stdin is not None:
        stdin.close()


def _wait_for_end(child: _Child) -> None:
    assert child.process is not None
    try:
        child.process.wait(GRACE_S + _TELL_S)
    except subprocess.TimeoutExpired:
        child.process.kill()  # its engine goes with it
        child.process.wait()


def _bury(child: _Child, how: str) -> None:
    """Note a death: start again later, or give up."""
    if child.process is not None:
        _let_go(child)
    child.process, child.is_ready = None, False
    child.num_deaths += 1
    wait_s = min(FIRST_BACKOFF_S * 2 ** (child.num_deaths - 1), MAX_BACKOFF_S)
    child.start_s = time.monotonic() + wait_s
    name, words = child.plan.name, last_words(child.plan.log_path).replace("\n", " / ")
    if child.num_deaths > MAX_DEATHS:
        _log.critical(
            "The engine %s %s, %d times in a row: it is given up. Its last words (%s): %s",
            name, how, child.num_deaths, child.plan.log_path, words,
        )  # fmt: skip
        return
    _log.error(
        "The engine %s %s; it is started again in %.0f s. Its last words (%s): %s",
        name, how, wait_s, child.plan.log_path, words,
    )  # fmt: skip


def last_words(log_path: Path) -> str:
    """Return the last lines that an engine has written."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LAST_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])


def _tell_progress(waiting: Sequence[_Child], num: int, seconds: float) -> None:
    words = last_words(waiting[0].plan.log_path).rpartition("\n")[2]
    _log.info(
        "Waiting for %d of %d engines since %.0f s. %s says: %s",
        len(waiting), num, seconds, waiting[0].plan.name, words or "nothing yet",
    )  # fmt: skip


def _died_at_start(child: _Child, status: int) -> EngineDownError:
    words = last_words(child.plan.log_path)
    known = (remedy for sign, remedy in _REMEDIES if sign in words)
    problem = f"The engine {child.plan.name} ended with status {status} while it was starting."
    remedy = next(known, "Start it by hand to see why.")
    if not words:
        return EngineDownError(f"{problem} It wrote nothing.", remedy)
    return EngineDownError(f"{problem} Its last words:\n{words}", f"{remedy} {_all_of(child)}")


def _too_slow(child: _Child, start_s: float) -> EngineDownError:
    problem = f"The engine {child.plan.name} did not answer within {start_s:g} s."
    remedy = f"Raise engine_start_s if it is merely slow. {_all_of(child)}"
    return EngineDownError(f"{problem} Its last words:\n{last_words(child.plan.log_path)}", remedy)


def _all_of(child: _Child) -> str:
    return f"All it wrote is in {child.plan.log_path}."
