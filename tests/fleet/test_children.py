import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

import http_engine
from headlong.errors import EngineDownError
from headlong.fleet import children, supervisor
from headlong.fleet.children import ChildPlan, Children, last_words

SUPERVISOR = [sys.executable, "-I", supervisor.__file__, "0.2"]
ENGINE = [sys.executable, http_engine.__file__, "--port"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def plan(folder: Path, command: list[str] | None = None, name: str = "plain-1") -> ChildPlan:
    """Plan a scripted engine, or another program."""
    port = free_port()
    own = [*ENGINE, str(port)] if command is None else command
    return ChildPlan(name, own, f"http://127.0.0.1:{port}", "/health", folder / f"{name}.log")


def wait_for(what: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline_s, "it never came to that"
        time.sleep(0.05)


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def engine_of(url: str) -> psutil.Process:
    """Return the process that listens at an address."""
    port = int(url.rpartition(":")[2])
    below = psutil.Process().children(recursive=True)
    return next(one for one in below if one.cmdline()[-1:] == [str(port)] and is_engine(one))


def is_engine(process: psutil.Process) -> bool:
    return supervisor.__file__ not in process.cmdline()


def test_engines_answer_within_the_block_and_are_gone_behind_it(tmp_path: Path) -> None:
    plans = [plan(tmp_path), plan(tmp_path, name="speculative-1")]
    with Children(plans, start_s=30):
        assert all(is_up(one.url) for one in plans)
        pids = [engine_of(one.url).pid for one in plans]
    assert not any(is_up(one.url) for one in plans)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_an_engine_that_dies_at_its_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    dying = plan(tmp_path, [sys.executable, "-c", "import no_such_engine"])
    sound = plan(tmp_path, name="plain-2")
    with pytest.raises(EngineDownError) as refused, Children([sound, dying], start_s=30):
        pytest.fail("it is not up")
    assert "No module named 'no_such_engine'" in refused.value.problem
    assert "--engine-command" in refused.value.remedy
    assert str(dying.log_path) in refused.value.remedy
    assert not is_up(sound.url)  # nothing is left of the others


def test_an_engine_that_dies_without_a_word_is_told_so(tmp_path: Path) -> None:
    silent = plan(tmp_path, [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(EngineDownError, match=r"status 3 .* It wrote nothing"), Children([silent]):
        pytest.fail("it is not up")


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(EngineDownError, match="no-such-program cannot be started"),
        Children([plan(tmp_path, ["no-such-program"])]),
    ):
        pytest.fail("it is not up")


def test_an_engine_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = "import time; print('wait', flush=True); time.sleep(60)"
    silent = plan(tmp_path, [sys.executable, "-c", script])
    with (
        pytest.raises(EngineDownError, match=r"(?s)did not answer within 2 s.*wait"),
        Children([silent], start_s=2),
    ):
        pytest.fail("it is not up")
    below = psutil.Process().children(recursive=True)
    assert not [one for one in below if script in one.cmdline()]


def test_an_engine_that_dies_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "FIRST_BACKOFF_S", 0.1)
    one = plan(tmp_path)
    with Children([one], start_s=30):
        first = engine_of(one.url)
        first.kill()
        first.wait()
        wait_for(lambda: is_up(one.url))
        assert engine_of(one.url).pid != first.pid
    assert any("ended with status 137" in line.getMessage() for line in caplog.records)


def test_an_engine_that_keeps_dying_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(children, "MAX_DEATHS", 2)
    caplog.set_level(logging.INFO, "headlong.fleet")
    marker = tmp_path / "was-here"
    script = f"""
import pathlib, runpy, sys
mark = pathlib.Path({str(marker)!r})
if mark.exists():
    sys.exit("no more")
mark.touch()
sys.argv = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    one = plan(tmp_path)
    one = replace(one, command=[sys.executable, "-c", script, *one.command[1:]])
    with Children([one], start_s=30):
        engine_of(one.url).kill()
        wait_for(lambda: any(line.levelno == logging.CRITICAL for line in caplog.records))
        time.sleep(0.5)
    started = [line for line in caplog.records if line.getMessage().startswith("Started")]
    assert len(started) == 3  # the first, and after each death but the last
    (told,) = [line.getMessage() for line in caplog.records if line.levelno == logging.CRITICAL]
    assert "given up" in told
    assert "no more" in told


def test_an_engine_whose_log_cannot_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the watch: no engine was ever started again."""
    monkeypatch.setattr(children, "FIRST_BACKOFF_S", 0.1)
    folder = tmp_path / "logs"
    one = plan(folder)
    with Children([one], start_s=30):
        folder.rename(tmp_path / "old")
        folder.touch()
        engine_of(one.url).kill()
        wait_for(lambda: any("cannot be started" in line.getMessage() for line in caplog.records))
        folder.unlink()
        wait_for(lambda: is_up(one.url))


def test_a_log_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with (
        pytest.raises(EngineDownError, match="plain-1 cannot be started: File exists"),
        Children([plan(tmp_path / "logs")], start_s=30),
    ):
        raise AssertionError


def test_an_engine_that_hangs_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_ASK_S", 0.2), ("STEADY_S", 1.0), ("GRACE_S", 0.1)):
        monkeypatch.setattr(children, name, seconds)
    one = plan(tmp_path)
    with Children([one], start_s=30):
        first = engine_of(one.url)
        first.suspend()
        wait_for(lambda: not first.is_running())
        wait_for(lambda: is_up(one.url))


PARENT = """
import sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from headlong.fleet.children import ChildPlan, Children
url, folder, *command = sys.argv[1:]
with Children([ChildPlan("plain-1", command, url, "/health", Path(folder) / "log")], start_s=30):
    print("up", flush=True)
    time.sleep(60)
"""


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL cannot be caught: the engine must go without its parent's help."""
    one = plan(tmp_path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(path=sys.path), one.url, str(tmp_path), *one.command],
        stdout=subprocess.PIPE,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        below = psutil.Process(parent.pid).children(recursive=True)
        assert len(below) == 2
        parent.kill()
    _, alive = psutil.wait_procs(below, timeout=15)
    assert not alive


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
def test_children_of_an_engine_that_leave_its_group_go_with_it() -> None:
    """Ray's daemons begin sessions of their own."""
    script = (
        "import subprocess, sys\n"
        "left = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(left.pid, flush=True)\n"
    )
    process = subprocess.Popen(
        [*SUPERVISOR, sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        left = int(process.stdout.readline())
        assert process.wait(timeout=30) == 0
    assert not psutil.pid_exists(left)


def test_a_program_that_ignores_the_signal_is_killed() -> None:
    deaf = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [*SUPERVISOR, sys.executable, "-c", deaf], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 128 + signal.SIGKILL


def test_last_words_are_few(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n\n" for number in range(10_000)))
    assert last_words(log).splitlines()[-1] == "line 9999"
    assert len(last_words(log).splitlines()) <= 12
    assert last_words(tmp_path / "none") == ""
