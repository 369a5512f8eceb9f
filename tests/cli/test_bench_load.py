"""`headlong bench load`: a real server, servers of others, and servers that die."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headlong.cli.main import main
from last_line import read_json
from live_server import ONE_THREAD, serve
from other_server import run_other_server
from talking_model import write_talking_model

SHORT = ["--concurrency", "1,3", "--duration", "0.6", "--max-tokens", "6"]


def test_real_server_is_loaded_with_all_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own server with a tiny model, tools included: no failure, same texts in both modes."""
    model = write_talking_model(tmp_path / "tiny.gguf", context_length=16_384)
    out = tmp_path / "load"
    with serve(model, environment=ONE_THREAD) as server:
        argv = ["bench", "load", server.url, "--concurrency", "1,4", "--duration", "2"]
        assert main([*argv, "--max-tokens", "4", "--out", str(out), "--json"]) == 0
    document = read_json(capsys)
    assert [level["name"] for level in document["levels"]] == ["1 at a time", "4 at a time"]
    assert document["failures"] == []
    assert document["identical"]["all"] is True
    assert document["identical"]["num_compared"] > 0
    assert document["classes"] == ["agents", "chat", "stories"]
    for level in document["levels"]:
        for mode in ("off", "auto"):
            assert level["modes"][mode]["tokens_per_second"] > 0
            assert level["modes"][mode]["ttft_p50_ms"] > 0
    assert document["levels"][1]["gain"]["num_questions"] > 0
    assert json.loads((out / "results.json").read_text()) == document
    assert document["verdict"] in (out / "report.html").read_text()


def test_bodies_carry_the_mode_and_classes_their_tools(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with run_other_server() as other:
        assert main(["bench", "load", other.url, *SHORT, "--json"]) == 0
    document = read_json(capsys)
    assert {body["mtp"] for body in other.bodies} == {"off", "auto"}
    assert any(body.get("tools") for body in other.bodies)
    assert {body["stream"] for body in other.bodies} == {True}
    assert document["setup"]["model"] == "other-model"
    assert document["token_counter"] == "`usage` of the servers' answers"


def test_plain_load_sends_nothing_special(capsys: pytest.CaptureFixture[str]) -> None:
    with run_other_server() as other:
        argv = ["bench", "load", other.url, *SHORT, "--plain", "--mix", "chat"]
        assert main(argv) == 0
    shown = capsys.readouterr().out
    assert not any("mtp" in body or "tools" in body for body in other.bodies)
    assert "At most" in shown
    assert "other-model" in shown


def test_arrivals_come_at_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with run_other_server() as other:
        argv = ["bench", "load", other.url, "--rate", "40", "--duration", "1", "--json"]
        assert main([*argv, "--max-tokens", "3"]) == 0
    (level,) = read_json(capsys)["levels"]
    assert level["name"] == "40 per second"
    assert 8 < level["modes"]["off"]["num_requests"] < 40  # half a second at 40 a second
    assert level["modes"]["off"]["num_requests"] == level["modes"]["auto"]["num_requests"]


def test_own_prompts_make_own_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "task": "x"}\n{"prompt": "b", "task": "y"}\n')
    with run_other_server() as other:
        argv = ["bench", "load", other.url, str(path), *SHORT, "--mtp", "3", "--json"]
        assert main(argv) == 0
    document = read_json(capsys)
    assert document["classes"] == ["x", "y"]
    assert document["modes"] == ["off", "3"]
    assert {body["mtp"] for body in other.bodies} == {"off", 3}


def test_busy_answers_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with run_other_server() as other:
        argv = ["bench", "load", other.url, *SHORT, "--mix", "chat", "--plain", "-m", "x"]
        other.num_busy = 10  # six to warm up, four of the load
        assert main([*argv, "--json"]) == 0
    document = read_json(capsys)
    assert document["levels"][0]["modes"]["plain"]["num_busy"] == 4
    assert "4 of" in document["verdict"]
    assert "turned away as busy" in document["verdict"]


def test_server_that_dies_leaves_partial_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "load"
    with run_other_server(dies_after=46) as other:  # 36 to warm up, ten answers
        argv = ["bench", "load", other.url, "--concurrency", "2", "--duration", "60"]
        assert main([*argv, "--max-tokens", "6", "--out", str(out)]) == 1
    shown = capsys.readouterr().out
    assert "Stopped early: the server no longer answers" in shown
    document = json.loads((out / "results.json").read_text())
    assert document["levels"][0]["modes"]["off"]["num_done"] == 10
    assert "broke off" in document["failures"][0]["error"]


def test_unreachable_server_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    for more in ([], ["-m", "x"]):
        assert main(["bench", "load", url, *more]) == 1
        error = capsys.readouterr().err
        assert f"{url}/v1 cannot be reached" in error
        assert "Is the server running" in error


def test_signal_in_the_middle_keeps_results(tmp_path: Path) -> None:
    """Ctrl-C as the terminal sends it, while requests are open."""
    out = tmp_path / "load"
    with run_other_server(token_s=0.01) as other:
        command = [sys.executable, "-m", "headlong", "bench", "load", other.url, "--out", str(out)]
        process = subprocess.Popen(
            [*command, "--duration", "9m", "--mix", "chat", "--max-tokens", "6"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and len(other.bodies) < 12 + 6:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    document = json.loads((out / "results.json").read_text())
    assert document["stopped"] == "stopped with Ctrl-C"
    assert document["levels"][0]["modes"]["off"]["num_done"] >= 1


def test_interruption_before_the_first_request_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "load"
    with run_other_server() as other:
        argv = ["bench", "load", other.url, "--out", str(out), "--duration", "0.2s"]
        argv += ["--mix", "chat", "--max-tokens", "4", "--concurrency", "1"]
        with monkeypatch.context() as patch:
            patch.setattr("headlong.bench.load_run.run_load", interrupt)
            assert main(argv) == 130
        assert not (out / "results.json").exists()
        assert main(argv) == 0
    assert (out / "results.json").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--concurrency", "1", "--rate", "1"], "were both given"),
        (["--concurrency", "1.5"], "--concurrency has 1.5."),
        (["--concurrency", "9999"], "--concurrency has 9999."),
        (["--max-tokens", "0"], "--max-tokens is 0."),
        (["--mtp", "off"], "--mtp off is the baseline anyway."),
        (["--mix", "poems=2"], "There is no class 'poems'."),
        (["missing.txt"], "There is no prompt file missing.txt."),
    ],
)
def test_impossible_wishes_are_refused_before_anything_is_asked(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "load", "http://127.0.0.1:9", *words]) == 1
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--concurrency", "x"], ["--rate", "0"], ["--mix", "a=b"], ["--mix", "a=0"]]
)
def test_words_that_cannot_be_read_are_usage_errors(words: list[str]) -> None:
    assert main(["bench", "load", "http://127.0.0.1:9", *words]) == 2
