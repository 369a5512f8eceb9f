import json
import signal
import time
from pathlib import Path

import httpx
import pytest

from headlong.cli.main import main
from headlong.cli.server_records import ServerRecord, listed, log_path, running_servers
from server_process import ServerProcess

RECORD = ServerRecord(1, "http://127.0.0.1:1", "m.gguf", "2026-01-01T00:00:00+00:00")


def test_server_is_listed_while_it_runs_and_its_log_stays(
    model: str, state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(model) as server:
        url = server.url
        port = url.rpartition(":")[2]
        httpx.post(f"{url}/v1/completions", json={"prompt": "hi", "max_tokens": 2})
        assert main(["ps", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["servers"]
        assert (row["url"], row["pid"]) == (url, server.process.pid)
        assert row["health"]["status"] == "ok"
        assert main(["ps"]) == 0
        assert "0 running, 0 waiting" in capsys.readouterr().out
        server.signal()
        assert main(["logs", port, "--follow"]) == 0  # ends with the server
        assert server.wait() == 0
    shown = capsys.readouterr()
    assert "POST /v1/completions 200" in shown.out
    assert "The server has ended." in shown.err
    assert main(["ps"]) == 0
    assert "No server of yours runs here." in capsys.readouterr().out
    assert main(["logs", "-n", "1", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["message"].startswith("Shutting down")


def test_killed_server_leaves_no_record(model: str, state_folder: Path) -> None:
    with ServerProcess(model) as server:
        assert server.url
        assert [one.pid for one in wait_for_record()] == [server.process.pid]
        server.signal(signal.SIGKILL)
        server.wait()
    assert running_servers() == []
    assert not list((state_folder / "servers").glob("*.json"))


def wait_for_record() -> list[ServerRecord]:
    """Return the servers that run; the banner comes a moment after the record."""
    deadline = time.monotonic() + 10
    while not running_servers() and time.monotonic() < deadline:
        time.sleep(0.02)
    return running_servers()


def test_latest_server_comes_first_and_a_silent_one_is_shown(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = ServerRecord(2, "http://127.0.0.1:2", "n.gguf", "2026-01-02T00:00:00+00:00")
    with listed(RECORD), listed(later):
        assert main(["ps"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("n.gguf")
    assert second.startswith("m.gguf")
    assert "does not answer" in first


def test_unusable_state_folder_does_not_stop_a_server(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"HEADLONG_STATE": str(tmp_path / "file")}
    with ServerProcess(model, environ=environ) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.signal()
        assert server.wait() == 0
    assert "`headlong ps` and `headlong logs` will not know this server" in server.text


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "No server of yours has logged anything."),
        (["77"], "No server of yours has the port or process id 77."),
        (["--lines", "-1"], "--lines is -1."),
    ],
)
def test_log_that_is_not_there_is_refused(
    state_folder: Path, argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *argv]) == 1
    assert complaint in capsys.readouterr().err


def test_log_lines_do_not_reach_the_terminal_raw(
    state_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state_folder / "servers").mkdir(parents=True)
    entry = {"time": "2026-01-01T10:00:00.000+00:00", "level": "warning", "message": "a\x1b[2J"}
    log_path(8000).write_text(json.dumps(entry) + "\nhalf a line\x1b[2J")
    assert main(["logs"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("warning: a�[2J")
    assert second == "half a line�[2J"
